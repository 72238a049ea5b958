"""Exact arithmetic to judge the instructions by: Python integers and fractions, one value at a time.

It shares no code and no method with the interpreter, which works on numpy arrays in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

Number = Fraction | float  # a float here is an infinity, a NaN or a signed zero


@dataclass(frozen=True)
class Layout:
    """Bits of a binary format: exponent, fraction, and how the top exponent is used."""

    exponent_bits: int
    fraction_bits: int
    ieee_specials: bool  # the top exponent is Inf and NaN
    top_nan: bool = False  # all ones is the only NaN

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self) -> int:
        return (1 << self.exponent_bits - 1) - 1


LAYOUTS = {
    "f32": Layout(8, 23, True),
    "f16": Layout(5, 10, True),
    "bf16": Layout(8, 7, True),
    "e4m3": Layout(4, 3, False, top_nan=True),
    "e5m2": Layout(5, 2, True),
    "e2m1": Layout(2, 1, False),
}
CANONICAL_NAN = {"f32": 0x7FFFFFFF, "f16": 0x7FFF, "bf16": 0x7FFF, "e4m3": 0x7F, "e5m2": 0x7F, "e2m1": 0x7}


def decode(bits: int, name: str) -> Number:
    """The value of a bit pattern."""
    layout = LAYOUTS[name]
    fraction = bits & (1 << layout.fraction_bits) - 1
    exponent = bits >> layout.fraction_bits & (1 << layout.exponent_bits) - 1
    negative = bool(bits >> layout.bits - 1)
    magnitude = bits & (1 << layout.bits - 1) - 1
    if layout.ieee_specials and exponent == (1 << layout.exponent_bits) - 1:
        return math.nan if fraction else (-math.inf if negative else math.inf)
    if layout.top_nan and magnitude == (1 << layout.bits - 1) - 1:
        return math.nan
    if magnitude == 0:
        return -0.0 if negative else 0.0
    significand = fraction + (1 << layout.fraction_bits if exponent else 0)
    power = max(exponent, 1) - layout.bias - layout.fraction_bits
    value = Fraction(significand) * Fraction(2) ** power
    return -value if negative else value


def largest(name: str) -> int:
    """The code of the greatest finite value: codes grow with values."""
    layout = LAYOUTS[name]
    top = (1 << layout.bits - 1) - 1
    if layout.ieee_specials:
        return top - (1 << layout.fraction_bits)
    return top - layout.top_nan


def encode(value: Number, name: str, rounding: str = "rn", satfinite: bool = False) -> int:
    """Round a number to a bit pattern by searching the neighbours among the format's codes."""
    layout = LAYOUTS[name]
    sign = 1 << layout.bits - 1
    if isinstance(value, float) and math.isnan(value):
        return CANONICAL_NAN[name]
    negative = math.copysign(1, value) < 0 if isinstance(value, float) else value < 0
    greatest = largest(name)
    infinity = greatest + 1 if layout.ieee_specials and not satfinite else greatest
    if isinstance(value, float) and math.isinf(value):
        return infinity | sign * negative
    magnitude = abs(Fraction(value))
    low, high = 0, greatest + 1  # codes; greatest + 1 stands for the next binade's start
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _magnitude(middle, layout) <= magnitude else (low, middle)
    below, above = _magnitude(low, layout), _magnitude(low + 1, layout)
    up = {"rz": False, "rm": negative, "rp": not negative, "rn": False}[rounding]
    if rounding == "rn":
        middle = (below + above) / 2
        up = magnitude > middle or (magnitude == middle and low % 2 == 1)
    code = low + (up and magnitude != below)
    return (code if code <= greatest else infinity) | sign * negative


@lru_cache(maxsize=1 << 17)
def _magnitude(code: int, layout: Layout) -> Fraction:
    """The value of a magnitude's code, one past the greatest finite one included."""
    exponent, fraction = code >> layout.fraction_bits, code & (1 << layout.fraction_bits) - 1
    significand = fraction + (1 << layout.fraction_bits if exponent else 0)
    return Fraction(significand) * Fraction(2) ** (max(exponent, 1) - layout.bias - layout.fraction_bits)


def add(a: Number, b: Number, rounding: str = "rn") -> Number:
    """a + b, exactly; the sign of a zero sum as IEEE 754, 6.3 says."""
    if not (_finite(a) and _finite(b)):
        return float(a if not _finite(a) else b) if _finite(a) or _finite(b) else float(a) + float(b)
    total = Fraction(a) + Fraction(b)
    if total == 0:
        signs = {_negative(a), _negative(b)}
        return -0.0 if signs == {True} or (len(signs) == 2 and rounding == "rm") else 0.0
    return total


def multiply(a: Number, b: Number) -> Number:
    """a * b, exactly."""
    negative = _negative(a) != _negative(b)
    if not (_finite(a) and _finite(b)):
        if math.isnan(a) or math.isnan(b) or a == 0 or b == 0:
            return math.nan
        return -math.inf if negative else math.inf
    product = Fraction(a) * Fraction(b)
    return product if product else (-0.0 if negative else 0.0)


def negate(a: Number) -> Number:
    """-a."""
    return -a


def _finite(a: Number) -> bool:
    return isinstance(a, Fraction) or math.isfinite(a)


def _negative(a: Number) -> bool:
    return math.copysign(1, a) < 0 if isinstance(a, float) else a < 0


def signed(value: int, bits: int) -> int:
    """The two's complement reading of an unsigned number."""
    return value - (1 << bits) if value >> bits - 1 else value


def flushed(bits: int, name: str) -> int:
    """What `.ftz` makes of a code, by its exponent field."""
    layout = LAYOUTS[name]
    exponent = bits >> layout.fraction_bits & (1 << layout.exponent_bits) - 1
    return bits if exponent else bits & 1 << layout.bits - 1


def samples(bits: int, count: int, seed: int) -> np.ndarray:
    """Bit patterns for integers: corners, single bits, runs of ones, random."""
    rng = np.random.default_rng(seed)
    corners = [0, 1, 2, 3, 7, 8, 31, 32, 33, 255, 256]
    corners += [1 << i for i in range(bits)] + [(1 << i) - 1 for i in range(bits + 1)]
    corners += [(1 << bits) - 1 - value for value in corners]
    pool = np.array([value % (1 << bits) for value in corners], np.uint64)
    random = rng.integers(0, 1 << bits, count, dtype=np.uint64, endpoint=False) if bits < 64 else rng.bytes(8 * count)
    random = random if bits < 64 else np.frombuffer(random, np.uint64)
    chosen = np.where(rng.random(count) < 0.5, rng.choice(pool, count), random)
    return chosen.astype(f"u{bits // 8}")


def float_samples(name: str, count: int, seed: int) -> np.ndarray:
    """Bit patterns for floats: zeros, subnormals, ones, ties, the largest, infinities, NaN, random."""
    rng = np.random.default_rng(seed)
    layout = LAYOUTS[name]
    one = layout.bias << layout.fraction_bits
    top = ((1 << layout.exponent_bits) - 1) << layout.fraction_bits
    smallest = 1 << layout.fraction_bits
    pool = [0, 1, 2, 3, smallest - 1, smallest, smallest + 1, one - 1, one, one + 1, one + 3, top - 1, top, top + 1]
    pool += [largest(name), (1 << layout.bits - 1) - 1, top | smallest >> 1]
    values = np.array(pool + [value | 1 << layout.bits - 1 for value in pool], np.uint64)
    wide = rng.integers(0, 1 << layout.bits, count, dtype=np.uint64)
    spread = 2 * layout.fraction_bits + 4  # exponents close enough that operands interact
    exponents = rng.integers(max(1, layout.bias - spread), layout.bias + spread, count, dtype=np.uint64)
    exponents = np.minimum(exponents, (1 << layout.exponent_bits) - 2)
    near = (wide & np.uint64(~top & (1 << layout.bits) - 1)) | exponents << np.uint64(layout.fraction_bits)
    kind = rng.integers(0, 4, count)
    chosen = np.select([kind == 0, kind == 1], [rng.choice(values, count), wide], near)
    return chosen.astype(f"u{max(layout.bits, 8) // 8}")
