"""Conversions (PTX ISA, Data Movement and Conversion Instructions: cvt, cvt.pack is not implemented).

A conversion rounds once, from the exact source value. A packed result holds the first source in its upper half.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.formats import FORMATS, encode_ue8m0, narrow, widen
from tests.ptx.scalars import SCALARS

from .floating import flush
from .pure import Modifiers, Op, pure, single

_INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64))
_FLOATS = ("f16", "bf16", "f32", "f64")
_PACKED = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2", "e2m1x2": "e2m1", "ue8m0x2": "ue8m0"}
_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_ROUNDINGS = ("rn", "rz", "rm", "rp")

Function = Callable[..., np.ndarray]


@pure("cvt", types=(*_INTEGERS, *_FLOATS, "f16x2", "e4m3x2", "e5m2x2", "e2m1x2"))
def cvt(m: Modifiers) -> Op:
    """Data Movement and Conversion Instructions: cvt, all forms but those with random bits (.rs) and tf32."""
    integer_rounding = m.one_of(*_TO_INTEGER, default="")
    rounding = m.one_of(*_ROUNDINGS, default="")
    ftz, sat, relu, satfinite = m.flag("ftz"), m.flag("sat"), m.flag("relu"), m.flag("satfinite")
    target, source = m.types(2)
    if target in _PACKED or source in _PACKED:
        if integer_rounding or ftz or sat:
            raise m.unknown("this form is not in the ISA")
        return _packed(m, target, source, rounding, relu, satfinite)
    if target in _INTEGERS and source in _INTEGERS:
        if integer_rounding or rounding or ftz or relu or satfinite:
            raise m.unknown("this form is not in the ISA")
        convert = _clamp(target) if sat else _truncate(target)
    elif target in _INTEGERS:
        if not integer_rounding or rounding or relu or satfinite:
            raise m.unknown("a float becomes an integer with .rni, .rzi, .rmi or .rpi")
        convert = _float_to_integer(target, source, integer_rounding, ftz)
    elif target in _FLOATS and source in (*_INTEGERS, *_FLOATS):
        if source == "f64" and target == "f64" and not integer_rounding:
            raise m.unknown("this form is not in the ISA")
        convert = _to_float(m, target, source, integer_rounding or rounding, (ftz, sat, relu, satfinite))
    else:
        raise m.unknown("its types are not implemented")
    return Op((target,), (source,), single(convert), relaxed=True)


def _truncate(target: str) -> Function:
    """Integer to integer: numpy drops upper bits, or fills them with the source's sign."""
    return lambda a: a.astype(SCALARS[target].view)


def _clamp(target: str) -> Function:
    limits = np.iinfo(SCALARS[target].view)

    def clamp(a: np.ndarray) -> np.ndarray:
        least, greatest = max(int(limits.min), np.iinfo(a.dtype).min), min(int(limits.max), np.iinfo(a.dtype).max)
        return np.clip(a, a.dtype.type(least), a.dtype.type(greatest)).astype(limits.dtype)

    return clamp


def _source_values(a: np.ndarray, source: str, ftz: bool) -> np.ndarray:
    if source == "f64":
        return a
    bits = np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}")
    return widen(flush(bits, source) if ftz else bits, source)


def _float_to_integer(target: str, source: str, rounding: str, ftz: bool) -> Function:
    """Out of range clamps; NaN is zero, or the top bit alone where f64 or a 64-bit integer takes part."""
    limits = np.iinfo(SCALARS[target].view)
    wide = source == "f64" or SCALARS[target].bits == 64
    nan = (1 << SCALARS[target].bits - 1) - (1 << SCALARS[target].bits if SCALARS[target].signed else 0) if wide else 0

    def convert(a: np.ndarray) -> np.ndarray:
        values = _TO_INTEGER[rounding](_source_values(a, source, ftz))
        inside = (values > float(limits.min)) & (values < float(limits.max))  # float(2**64 - 1) is 2**64
        exact = np.where(inside, values, 0.0).astype(limits.dtype)
        clamped = np.where(values >= float(limits.max), limits.dtype.type(limits.max), limits.dtype.type(limits.min))
        return np.where(np.isnan(values), limits.dtype.type(nan), np.where(inside, exact, clamped))

    return convert


def _to_float(m: Modifiers, target: str, source: str, rounding: str, flags: tuple[bool, bool, bool, bool]) -> Function:
    ftz, sat, relu, satfinite = flags
    from_integer = source in _INTEGERS
    to_whole = rounding in _TO_INTEGER
    narrowing = from_integer or SCALARS[source].bits > SCALARS[target].bits or {source, target} == {"f16", "bf16"}
    if narrowing != (rounding in _ROUNDINGS) and not to_whole:
        raise m.unknown("a conversion that rounds names its rounding, one that does not must not")
    rounded_twice = from_integer and SCALARS[source].bits == 64 and (target, rounding) != ("f64", "rn")
    if rounded_twice or (target == "f64" and (sat or relu or satfinite)):
        raise m.unknown("this form is not implemented")  # a 64-bit integer is not exact in float64

    def convert(a: np.ndarray) -> np.ndarray:
        if source == "bf16" and target == "f32" and not (to_whole or sat or relu):
            return (np.ascontiguousarray(a).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        values = a.astype(np.float64) if from_integer else _source_values(a, source, ftz and source == "f32")
        if to_whole:
            values = _TO_INTEGER[rounding](values)
        if target == "f64":
            return values
        if sat:
            values = np.where(np.isnan(values), 0.0, np.clip(values, 0.0, 1.0)) + 0.0
        if relu:
            values = np.where(np.signbit(values) & ~np.isnan(values), 0.0, values)
        bits = narrow(values, target, rounding if rounding in _ROUNDINGS else "rn", satfinite)
        if ftz and target == "f32":
            bits = flush(bits, "f32")
        return bits.view(SCALARS[target].view)

    return convert


def _packed(m: Modifiers, target: str, source: str, rounding: str, relu: bool, satfinite: bool) -> Op:
    if source == "f32" and target in _PACKED:
        allowed = {"f16x2": ("rn", "rz"), "bf16x2": ("rn", "rz"), "ue8m0x2": ("rz", "rp")}.get(target, ("rn",))
        if rounding not in allowed or m.source_count != 2:
            raise m.unknown("this form is not in the ISA")
        if target in ("e4m3x2", "e5m2x2", "e2m1x2") and not satfinite:
            raise m.unknown(".satfinite is mandatory")
        element = _PACKED[target]

        def pack(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            a, b = np.broadcast_arrays(a, b)
            upper, lower = (_narrow_one(x.astype(np.float64), element, rounding, relu, satfinite) for x in (a, b))
            bits = FORMATS[element].bits if element in FORMATS else 8
            storage = SCALARS[target].view
            return upper.astype(storage) << storage.type(bits) | lower.astype(storage)

        return Op((target,), ("f32", "f32"), single(pack), relaxed=True)
    if source in ("e4m3x2", "e5m2x2", "e2m1x2") and target == "f16x2" and rounding == "rn" and not satfinite:
        return Op(("f16x2",), (source,), single(_unpack(_PACKED[source], relu)), relaxed=True)
    if source == "f16x2" and target in ("e4m3x2", "e5m2x2") and rounding == "rn" and satfinite:
        element = _PACKED[target]

        def repack(a: np.ndarray) -> np.ndarray:
            halves = np.ascontiguousarray(a).view(np.float16).astype(np.float64).reshape(-1, 2)
            codes = _narrow_one(halves, element, rounding, relu, satfinite).astype(np.uint16)
            return codes[:, 1] << np.uint16(8) | codes[:, 0]

        return Op((target,), (source,), single(repack), relaxed=True)
    raise m.unknown("this form is not implemented")


def _narrow_one(values: np.ndarray, element: str, rounding: str, relu: bool, satfinite: bool) -> np.ndarray:
    if element == "ue8m0":
        return encode_ue8m0(values, rounding, satfinite)
    if relu:
        values = np.where(np.signbit(values) & ~np.isnan(values), 0.0, values)
    return narrow(values, element, rounding, satfinite)


def _unpack(element: str, relu: bool) -> Function:
    bits = FORMATS[element].bits

    def unpack(a: np.ndarray) -> np.ndarray:
        mask = a.dtype.type((1 << bits) - 1)
        halves = np.stack([a & mask, a >> a.dtype.type(bits)], axis=-1)
        values = widen(halves, element)
        if relu:
            values = np.where(np.signbit(values) & ~np.isnan(values), 0.0, values)
        return np.ascontiguousarray(narrow(values, "f16")).view(np.uint32).reshape(a.shape)

    return unpack
