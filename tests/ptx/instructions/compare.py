"""Comparison and selection (PTX ISA, Comparison and Selection Instructions, and their half-precision forms)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.formats import widen
from tests.ptx.scalars import SCALARS

from .floating import flush
from .pure import Modifiers, Op, pure, single

_ORDERED: dict[str, Callable[..., np.ndarray]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip
_UNSIGNED_ONLY = ("lo", "ls", "hi", "hs")
_UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu")
_COMPARISONS = (*_ORDERED, *_UNORDERED, "num", "nan")
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
_FLOATS = ("f16", "bf16", "f32", "f64")
_TYPES = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", *_FLOATS)


def _comparison(m: Modifiers) -> Callable[[str], Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Read the comparison; the answer builds its function for an operand type."""
    name, ftz = m.one_of(*_COMPARISONS), m.flag("ftz")

    def for_type(kind: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        if kind not in _FLOATS:
            if name not in _ORDERED or (name in _UNSIGNED_ONLY and SCALARS[kind].signed):
                raise m.unknown(f".{name} does not compare .{kind}")
            if kind[0] == "b" and name not in ("eq", "ne"):
                raise m.unknown(f".{name} does not compare .{kind}")
            return _ORDERED[name]
        if name in _UNSIGNED_ONLY:
            raise m.unknown(f".{name} does not compare .{kind}")

        def compare(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            x, y = _values(a, kind, ftz), _values(b, kind, ftz)
            nan = np.isnan(x) | np.isnan(y)
            if name in ("num", "nan"):
                return nan if name == "nan" else ~nan
            if name in _UNORDERED:
                return _ORDERED[name[:-1]](x, y) | nan
            return _ORDERED[name](x, y) & ~nan

        return compare

    return for_type


def _values(a: np.ndarray, kind: str, ftz: bool) -> np.ndarray:
    if kind == "f64":
        return a
    bits = np.ascontiguousarray(a).view(np.uint32 if kind == "f32" else np.uint16)
    return widen(flush(bits, kind) if ftz else bits, kind)


@pure("setp", types=_TYPES)
def setp(m: Modifiers) -> Op:
    """Comparison and Selection Instructions: setp. The second result is the opposite comparison, combined alike."""
    comparison, combine = _comparison(m), m.one_of(*_COMBINE, default="")
    kind = m.type(*_TYPES)
    compare = comparison(kind)

    def compute(a: np.ndarray, b: np.ndarray, *more: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        result = compare(a, b)
        opposite = ~result
        return (
            (_COMBINE[combine](result, more[0]), _COMBINE[combine](opposite, more[0]))
            if combine
            else (result, opposite)
        )

    return Op(("pred", "pred"), (kind, kind, "pred") if combine else (kind, kind), compute)


@pure("set", types=_TYPES)
def set_(m: Modifiers) -> Op:
    """Comparison and Selection Instructions: set. True is 1.0 in f32 and all ones in u32 and s32."""
    comparison, combine = _comparison(m), m.one_of(*_COMBINE, default="")
    result, kind = m.types(2)
    if result not in ("u32", "s32", "f32") or kind not in _TYPES:
        raise m.unknown("its types are not implemented")
    compare = comparison(kind)
    true = SCALARS[result].view.type(1.0 if result == "f32" else -1 if result == "s32" else 0xFFFFFFFF)

    def compute(a: np.ndarray, b: np.ndarray, *more: np.ndarray) -> np.ndarray:
        answer = compare(a, b)
        if combine:
            answer = _COMBINE[combine](answer, more[0])
        return np.where(answer, true, true.dtype.type(0))

    return Op((result,), (kind, kind, "pred") if combine else (kind, kind), single(compute))


@pure("selp", types=tuple(kind for kind in _TYPES if kind not in ("f16", "bf16")))
def selp(m: Modifiers) -> Op:
    """Comparison and Selection Instructions: selp."""
    (kind,) = m.types(1)
    return Op((kind,), (kind, kind, "pred"), single(lambda a, b, p: np.where(p, a, b)))


@pure("slct", types=("s32", "f32"))
def slct(m: Modifiers) -> Op:
    """Comparison and Selection Instructions: slct. `a` where `c >= 0`, else `b`; -0 counts as zero, NaN as negative."""
    ftz = m.flag("ftz")
    kind, selector = m.types(2)
    if selector not in ("s32", "f32") or (ftz and selector != "f32"):
        raise m.unknown("this form is not in the ISA")  # .ftz only turns a subnormal into a zero of its sign

    def select(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        if ftz:
            c = flush(np.ascontiguousarray(c).view(np.uint32), "f32").view(np.float32)
        return np.where(c >= 0, a, b)

    return Op((kind,), (kind, kind, selector), single(select))
