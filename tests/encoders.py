"""Encoders of the number formats that share no code with the library: nearest value of a table, ties to the even code.

Everything is done in float64 over the value tables, where every product and comparison of these formats is exact.
Formats: OFP8 e4m3fn; OCP Microscaling Formats (MX) v1.0, E2M1 and E8M0.
"""

from __future__ import annotations

import numpy as np

E4M3 = np.array(
    [code % 8 * 2.0**-9 if code < 8 else (1 + code % 8 / 8) * 2.0 ** (code // 8 - 7) for code in range(0x7F)]
)
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FLOOR = {"fp8": float(np.float32(1e-4)), "mxfp4": 6 * 2.0**-126}
RECIPROCAL = {"fp8": float(np.float32(1 / 448)), "mxfp4": float(np.float32(1 / 6))}


def all_bf16() -> np.ndarray:
    """Every bf16 value, by its bit pattern, in float64."""
    return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)


def quantized(fmt: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes with their sign bit, and the biased scale exponents, of finite rows (or blocks) of float64 values."""
    exponents = scale_exponents(fmt, np.abs(values).max(-1))
    scaled = np.ldexp(values, (127 - exponents)[:, None])
    table, sign_bit = (E4M3, 7) if fmt == "fp8" else (E2M1, 3)
    return nearest_codes(table, scaled) | (np.signbit(values).astype(np.uint8) << sign_bit), exponents


def nearest_codes(table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Codes of the nearest table values by magnitude, ties to the even code, saturating; without the sign."""
    magnitude = np.abs(values)
    above = np.searchsorted(table, magnitude).clip(1, len(table) - 1)
    below = above - 1
    to_below, to_above = magnitude - table[below], table[above] - magnitude
    even = np.where(below % 2 == 0, below, above)
    return np.where(to_below < to_above, below, np.where(to_above < to_below, above, even)).astype(np.uint8)


def scale_exponents(fmt: str, amax: np.ndarray) -> np.ndarray:
    """The biased exponent of the smallest power of two no smaller than max(amax, floor) * reciprocal.

    A bf16 times a binary32 is exact in float64, so that the cast is the one rounding of the product.
    """
    product = (np.maximum(amax, FLOOR[fmt]) * RECIPROCAL[fmt]).astype(np.float32)
    mantissa, exponent = np.frexp(product)
    return np.where(mantissa == 0.5, exponent - 1, exponent) + 127
