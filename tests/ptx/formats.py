"""Floating-point formats and their exact rounding: f32, f16, bf16, e4m3, e5m2, e2m1, ue8m0.

Every value of these formats is a float64, so an operation is computed in float64 and rounded once. Where float64
itself rounds (a sum, a fused multiply-add), `sum_to_odd` keeps the inexactness in the last bit, and the second rounding
is then exact: rounding to odd with p bits and then to q bits equals one rounding when p >= q + 2 (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008, theorem 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .scalars import STORAGE


@dataclass(frozen=True)
class Format:
    """A binary format: `precision` counts the hidden bit; `smallest` is the exponent of the smallest normal number."""

    name: str
    bits: int
    precision: int
    smallest: int
    largest: float  # greatest finite magnitude
    canonical_nan: int
    infinity: int | None  # None: the format has no infinity


FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format("f32", 32, 24, -126, float(np.finfo(np.float32).max), 0x7FFFFFFF, 0x7F800000),
        Format("f16", 16, 11, -14, 65504.0, 0x7FFF, 0x7C00),
        Format("bf16", 16, 8, -126, (2 - 2.0**-7) * 2.0**127, 0x7FFF, 0x7F80),
        Format("e4m3", 8, 4, -6, 448.0, 0x7F, None),
        Format("e5m2", 8, 3, -14, 57344.0, 0x7F, 0x7C),
        Format("e2m1", 4, 2, 0, 6.0, 0x7, None),  # no NaN: a NaN becomes the largest value
    )
}


def widen(bits: np.ndarray, name: str) -> np.ndarray:
    """The float64 values of the bit patterns `bits` of format `name`."""
    if name == "f32":
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)
    if name == "f16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    if name == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    fmt = FORMATS[name]
    fraction_bits = fmt.precision - 1
    bits = bits.astype(np.int64)
    fraction = bits & (1 << fraction_bits) - 1
    exponent = bits >> fraction_bits & (1 << fmt.bits - fmt.precision) - 1
    significand = np.where(exponent > 0, fraction | 1 << fraction_bits, fraction).astype(np.float64)
    value = np.ldexp(significand, np.maximum(exponent, 1) - 1 + fmt.smallest - fraction_bits)
    magnitude = bits & (1 << fmt.bits - 1) - 1
    if fmt.infinity is not None:
        value = np.where(magnitude == fmt.infinity, np.inf, value)
        value = np.where(magnitude > fmt.infinity, np.nan, value)
    elif name == "e4m3":
        value = np.where(magnitude == 0x7F, np.nan, value)
    return np.where(bits >> fmt.bits - 1 & 1, -value, value)


def narrow(values: np.ndarray, name: str, rounding: str = "rn", satfinite: bool = False) -> np.ndarray:
    """Round float64 `values` once to format `name` and return its bit patterns.

    `rounding` is rn (nearest even), rz, rm (down) or rp (up). Overflow gives infinity or, when rounding away from it,
    the greatest finite number; `satfinite` and formats without infinity give the greatest finite number. NaN gives the
    canonical NaN (PTX ISA, cvt: 0x7FFF for f16 and bf16, 0x7F for the FP8 formats, the largest value for e2m1).
    """
    fmt = FORMATS[name]
    values = np.asarray(values, dtype=np.float64)
    if name == "f32" and rounding == "rn" and not satfinite:
        bits = values.astype(np.float32).view(np.uint32)
        return np.where(np.isnan(values), np.uint32(fmt.canonical_nan), bits)
    finite = np.isfinite(values)
    magnitude = np.abs(np.where(finite, values, 0.0))
    exponent = _exponent(magnitude, fmt)
    quantum = exponent - (fmt.precision - 1)
    steps = _round_steps(np.ldexp(magnitude, -quantum), np.signbit(values), rounding)
    rounded = np.ldexp(steps, quantum)
    overflow = (rounded > fmt.largest) | np.isinf(values)
    code = _encode(np.where(overflow, 0.0, rounded), fmt)
    code = np.where(overflow, _overflow_code(values, fmt, rounding, satfinite), code)
    code = code | np.signbit(values).astype(np.int64) << fmt.bits - 1
    code = np.where(np.isnan(values), fmt.canonical_nan, code)
    return code.astype(STORAGE[max(fmt.bits, 8)])


def _exponent(magnitude: np.ndarray, fmt: Format) -> np.ndarray:
    """The exponent of the binade a magnitude lies in, that of the subnormal numbers at least."""
    exponent = np.where(magnitude == 0, fmt.smallest, np.frexp(magnitude)[1] - 1)
    return np.maximum(exponent, fmt.smallest)


def _round_steps(steps: np.ndarray, negative: np.ndarray, rounding: str) -> np.ndarray:
    """Round a magnitude, counted in units of the last place, to an integer."""
    if rounding == "rn":
        return np.rint(steps)
    if rounding == "rz":
        return np.floor(steps)
    away = negative if rounding == "rm" else ~negative
    return np.where(away, np.ceil(steps), np.floor(steps))


def _encode(magnitude: np.ndarray, fmt: Format) -> np.ndarray:
    """The bits of magnitudes that the format holds exactly: codes of a binary format grow with its values."""
    exponent = _exponent(magnitude, fmt)
    fraction_bits = fmt.precision - 1
    steps = np.ldexp(magnitude, fraction_bits - exponent).astype(np.int64)
    return ((exponent - fmt.smallest).astype(np.int64) << fraction_bits) + steps


def _overflow_code(values: np.ndarray, fmt: Format, rounding: str, satfinite: bool) -> np.ndarray:
    greatest = int(_encode(np.array(fmt.largest), fmt))
    if satfinite or fmt.infinity is None:
        return np.full(values.shape, greatest)
    negative = np.signbit(values)
    stays_finite = {
        "rn": np.zeros_like(negative),
        "rz": np.ones_like(negative),
        "rm": ~negative,
        "rp": negative,
    }[rounding]
    return np.where(stays_finite & np.isfinite(values), greatest, fmt.infinity)


def sum_to_odd(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y in float64, rounded to odd: exact, or truncated with the last bit set.

    The error of the rounded sum is exact by Knuth's TwoSum. Nothing overflows: operands come from formats of at most 8
    exponent bits, whose products stay below 2**256.
    """
    total = x + y
    x_part = total - y
    error = (x - x_part) + (y - (total - x_part))
    bits = total.view(np.int64)
    # An odd last bit already says "inexact". An even one moves one place toward the exact sum; it becomes odd.
    toward_zero = (error > 0) == (total < 0)
    step = np.where(toward_zero, -1, 1)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + step, bits).view(np.float64)


def encode_ue8m0(values: np.ndarray, rounding: str, satfinite: bool) -> np.ndarray:
    """Powers of two as biased exponents (OCP Microscaling Formats v1.0, E8M0): rz or rp; NaN and Inf give 0xFF.

    The sign is dropped. `satfinite` turns what is above 2**127 into 0xFE; zero and what is below 2**-127 give 0.
    """
    magnitude = np.abs(np.where(np.isfinite(values), values, 1.0))
    mantissa, exponent = np.frexp(magnitude)
    exponent = exponent - 1
    if rounding == "rp":
        exponent = exponent + (mantissa != 0.5)
    biased = np.where(magnitude == 0, 0, np.maximum(exponent + 127, 0))
    top = 0xFE if satfinite else 0xFF
    biased = np.where(np.isinf(values), top, np.minimum(biased, top))
    return np.where(np.isnan(values), 0xFF, biased).astype(np.uint8)
