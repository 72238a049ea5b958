"""Floating-point arithmetic: f32, f64, f32x2, and the half-precision f16, bf16, f16x2, bf16x2.

PTX ISA, Floating-Point Instructions and Half Precision Floating-Point Instructions: subnormals are kept unless `.ftz`,
a NaN result is the canonical NaN, a rounding modifier that is left out means nearest even. Approximate forms
(`.approx`, `.full`) have no defined bits and are unknown here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.formats import FORMATS, narrow, sum_to_odd, widen

from .pure import Modifiers, Op, pure, single

SINGLE = ("f32", "f32x2")
HALF = ("f16", "f16x2", "bf16", "bf16x2")
ROUNDINGS = ("rn", "rz", "rm", "rp")

Function = Callable[..., np.ndarray]


def by_elements(kind: str, function: Function) -> Function:
    """Apply `function`, which maps bits to bits of one element, to each element of registers of type `kind`."""
    bits = {"f64": 64, "f32": 32, "f32x2": 32}.get(kind, 16)
    element = np.dtype(f"u{bits // 8}")

    def apply(*sources: np.ndarray) -> np.ndarray:
        sources = np.broadcast_arrays(*(np.ascontiguousarray(source) for source in sources))
        elements = [np.ascontiguousarray(source).view(element) for source in sources]
        result = np.ascontiguousarray(function(*elements), dtype=element)
        return result.view(np.ascontiguousarray(sources[0]).dtype)

    return apply


def _op(kind: str, count: int, function: Function) -> Op:
    return Op((kind,), (kind,) * count, single(by_elements(kind, function)))


def flush(bits: np.ndarray, name: str) -> np.ndarray:
    """`.ftz`: subnormal numbers of format `name` become zero of the same sign."""
    fmt = FORMATS[name]
    sign = bits.dtype.type(1 << fmt.bits - 1)
    smallest_normal = 1 << fmt.precision - 1
    return np.where((bits & ~sign) < smallest_normal, bits & sign, bits)


def _finish(values: np.ndarray, bits: np.ndarray, name: str, ftz: bool, relu: bool, sat: bool) -> np.ndarray:
    """The result modifiers: .ftz, .relu (negative to zero, NaN stays NaN), .sat (to [0, 1], NaN to +0)."""
    if ftz:
        bits = flush(bits, name)
    if relu:
        bits = np.where(np.signbit(values) & ~np.isnan(values), bits.dtype.type(0), bits)
    if sat:
        clamped = np.where(np.isnan(values), 0.0, np.clip(widen(bits, name), 0.0, 1.0))
        bits = narrow(np.where(clamped == 0, 0.0, clamped), name)
    return bits


def _arithmetic(m: Modifiers, count: int, exact: Function, native: Function) -> Op:
    """An operation rounded once. `exact` works in float64, exactly or rounding to odd; `native` is for .f64."""
    rounding = m.one_of(*ROUNDINGS, default="rn")
    ftz, relu, sat = m.flag("ftz"), m.flag("relu"), m.flag("sat")
    kind = m.type("f64", *SINGLE, *HALF)
    name = kind.removesuffix("x2")
    if name in ("f16", "bf16") and rounding != "rn":
        raise m.unknown(f"rounding .{rounding} of .{kind}")
    if name == "f64":
        if rounding != "rn" or ftz or relu or sat:
            raise m.unknown("only .rn is implemented for .f64")
        return _op(kind, count, lambda *bits: native(*(each.view(np.float64) for each in bits)).view(np.uint64))

    def compute(*sources: np.ndarray) -> np.ndarray:
        if ftz:
            sources = tuple(flush(source, name) for source in sources)
        values = exact(rounding, *(widen(source, name) for source in sources))
        return _finish(values, narrow(values, name, rounding), name, ftz, relu, sat)

    return _op(kind, count, compute)


def _exact_sum(rounding: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = sum_to_odd(a, b)
    if rounding == "rm":  # IEEE 754, 6.3: an exact zero sum of opposite signs is -0 when rounding down
        total = np.where((total == 0) & (np.signbit(a) != np.signbit(b)), -0.0, total)
    return total


@pure("add", types=("f64", *SINGLE, *HALF))
def add(m: Modifiers) -> Op:
    """(Half Precision) Floating-Point Instructions: add."""
    return _arithmetic(m, 2, _exact_sum, np.add)


@pure("sub", types=("f64", *SINGLE, *HALF))
def sub(m: Modifiers) -> Op:
    """(Half Precision) Floating-Point Instructions: sub."""
    return _arithmetic(m, 2, lambda rounding, a, b: _exact_sum(rounding, a, -b), np.subtract)


@pure("mul", types=("f64", *SINGLE, *HALF))
def mul(m: Modifiers) -> Op:
    """(Half Precision) Floating-Point Instructions: mul. A product of two f32 is exact in float64 (48 bits)."""
    return _arithmetic(m, 2, lambda _, a, b: a * b, np.multiply)


@pure("fma", types=(*SINGLE, *HALF))
@pure("mad", types=("f32",))
def fma(m: Modifiers) -> Op:
    """(Half Precision) Floating-Point Instructions: fma, and mad.f32, which is fma on every supported target."""
    return _arithmetic(m, 3, lambda rounding, a, b, c: _exact_sum(rounding, a * b, c), np.add)


@pure("add", "sub", "fma", types=("f32.f16", "f32.bf16"))
def mixed(m: Modifiers) -> Op:
    """Mixed Precision Floating-Point Instructions: add, sub, fma. The last source and the result are f32."""
    rounding, sat = m.one_of(*ROUNDINGS, default="rn"), m.flag("sat")
    _, narrow_kind = m.types(2)

    def compute(*sources: np.ndarray) -> np.ndarray:
        *narrow_sources, last = np.broadcast_arrays(*sources)
        a, *more = (widen(np.ascontiguousarray(each).view(np.uint16), narrow_kind) for each in narrow_sources)
        c = widen(np.ascontiguousarray(last).view(np.uint32), "f32")
        values = _exact_sum(rounding, a * more[0] if more else a, -c if m.root == "sub" else c)
        return _finish(values, narrow(values, "f32", rounding), "f32", ftz=False, relu=False, sat=sat).view(np.float32)

    factors = 2 if m.root == "fma" else 1
    return Op(("f32",), (narrow_kind,) * factors + ("f32",), single(compute))


@pure("div", types=("f32", "f64"))
def div(m: Modifiers) -> Op:
    """Floating-Point Instructions: div.rn. float64 then f32 equals one rounding for a quotient (53 >= 2 * 24 + 2)."""
    if m.one_of(*ROUNDINGS) != "rn":
        raise m.unknown("only .rn is implemented")
    return _arithmetic(m, 2, lambda _, a, b: a / b, np.divide)


@pure("sqrt", "rcp", types=("f32", "f64"))
def sqrt(m: Modifiers) -> Op:
    """Floating-Point Instructions: sqrt.rn, rcp.rn. Double rounding is harmless as it is for div."""
    if m.one_of(*ROUNDINGS) != "rn":
        raise m.unknown("only .rn is implemented")
    function: Function = np.sqrt if m.root == "sqrt" else np.reciprocal
    return _arithmetic(m, 1, lambda _, a: function(a), function)


@pure("abs", "neg", types=("f64", "f32", *HALF))
def absolute(m: Modifiers) -> Op:
    """(Half Precision) Floating-Point Instructions: abs, neg. They touch the sign alone; a NaN stays a NaN."""
    ftz = m.flag("ftz")
    kind = m.type("f64", "f32", *HALF)
    name = kind.removesuffix("x2")

    def compute(bits: np.ndarray) -> np.ndarray:
        sign = bits.dtype.type(1 << 8 * bits.dtype.itemsize - 1)
        changed = bits & ~sign if m.root == "abs" else bits ^ sign
        return flush(changed, name) if ftz else changed

    return _op(kind, 1, compute)


@pure("copysign", types=("f32", "f64"))
def copysign(m: Modifiers) -> Op:
    """Floating-Point Instructions: copysign. The magnitude of `b` with the sign of `a`."""
    kind = m.type("f32", "f64")

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        sign = a.dtype.type(1 << 8 * a.dtype.itemsize - 1)
        return (a & sign) | (b & ~sign)

    return _op(kind, 2, compute)


@pure("min", "max", types=("f32", *HALF))
def minimum(m: Modifiers) -> Op:
    """(Half Precision) Floating-Point Instructions: min, max, of two values or, for f32, three.

    -0 is below +0. Without `.NaN` a NaN gives way to a number; with it any NaN gives the canonical NaN. `.abs` compares
    magnitudes; `.xorsign` then gives the result the product of the signs, unless the result is NaN. (So the ISA says in
    words and for single values; its pseudocode for pairs looks at `a` for a NaN in place of the result. The two differ
    in sign bits alone.)
    """
    ftz, propagate = m.flag("ftz"), m.flag("NaN")
    xorsign, magnitudes = m.flag("xorsign"), m.flag("abs")
    kind = m.type("f32", *HALF)
    name = kind.removesuffix("x2")
    if m.source_count not in ((2, 3) if name == "f32" else (2,)) or xorsign != (magnitudes and m.source_count == 2):
        raise m.unknown("this form is not in the ISA")
    fmt = FORMATS[name]

    def compute(*sources: np.ndarray) -> np.ndarray:
        if ftz:
            sources = tuple(flush(source, name) for source in sources)
        sign = sources[0].dtype.type(1 << fmt.bits - 1)
        compared = [source & ~sign for source in sources] if magnitudes else list(sources)
        best = compared[0]
        for other in compared[1:]:
            best = _extreme(best, other, name, m.root == "max", propagate)
        if xorsign:
            nan = np.isnan(widen(best, name))
            best = np.where(nan, best, best | ((sources[0] ^ sources[1]) & sign))
        return best

    return _op(kind, m.source_count, compute)


def _extreme(a: np.ndarray, b: np.ndarray, name: str, largest: bool, propagate: bool) -> np.ndarray:
    x, y = widen(a, name), widen(b, name)
    nan = a.dtype.type(FORMATS[name].canonical_nan)
    a_wins = (x > y) | ((x == y) & ~np.signbit(x)) if largest else (x < y) | ((x == y) & np.signbit(x))
    best = np.where(a_wins, a, b)
    if propagate:
        return np.where(np.isnan(x) | np.isnan(y), nan, best)
    best = np.where(np.isnan(x), b, np.where(np.isnan(y), a, best))
    return np.where(np.isnan(x) & np.isnan(y), nan, best)


@pure("testp", types=("f32", "f64"))
def testp(m: Modifiers) -> Op:
    """Floating-Point Instructions: testp."""
    question = m.one_of("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = m.type("f32", "f64")

    def compute(a: np.ndarray) -> np.ndarray:
        tiny = np.finfo(a.dtype).tiny
        answers = {
            "finite": np.isfinite(a),
            "infinite": np.isinf(a),
            "number": ~np.isnan(a),
            "notanumber": np.isnan(a),
            "normal": np.isfinite(a) & (np.abs(a) >= tiny),
            "subnormal": (a != 0) & (np.abs(a) < tiny),
        }
        return answers[question]

    return Op(("pred",), (kind,), single(compute))
