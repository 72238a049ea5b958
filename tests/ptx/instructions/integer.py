"""Integer arithmetic (PTX ISA, Integer Arithmetic Instructions). All of it wraps, as two's complement does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.errors import ExecutionError
from tests.ptx.scalars import SCALARS

from .logic import shift_left
from .pure import Modifiers, Op, pure, single

WORDS = ("u16", "u32", "u64", "s16", "s32", "s64")
HALVES = ("u16x2", "s16x2")  # two 16-bit integers in a 32-bit register
_TWICE = {"u16": "u32", "u32": "u64", "s16": "s32", "s32": "s64"}

Function = Callable[..., np.ndarray]


def by_halves(kind: str, function: Function) -> Function:
    """Apply a function of 16-bit integers to each half of 32-bit registers."""
    view = np.dtype("i2" if kind == "s16x2" else "u2")

    def both(*sources: np.ndarray) -> np.ndarray:
        halves = np.broadcast_arrays(*(np.ascontiguousarray(source) for source in sources))
        halves = [np.ascontiguousarray(source).view(view) for source in halves]
        return np.ascontiguousarray(function(*halves)).view(np.uint32)

    return both


def _binary(kind: str, function: Function) -> Op:
    if kind in HALVES:
        return Op((kind,), (kind, kind), single(by_halves(kind, function)))
    return Op((kind,), (kind, kind), single(function))


@pure("add", "sub", types=WORDS + HALVES)
def add(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: add, sub. `.sat` (s32) clamps to the range of s32 instead of wrapping."""
    function = np.add if m.root == "add" else np.subtract
    if m.flag("sat"):
        kind = m.type("s32")

        def saturate(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            exact = function(a.astype(np.int64), b.astype(np.int64))
            return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)

        return Op((kind,), (kind, kind), single(saturate))
    return _binary(m.type(*WORDS, *HALVES), function)


@pure("mul", "mad", types=WORDS)
def mul(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: mul, mad. `.lo` or `.hi` half, or `.wide`, all of the product."""
    part = m.one_of("lo", "hi", "wide")
    kind = m.type(*WORDS)
    if part == "wide" and kind not in _TWICE:
        raise m.unknown("a 64-bit product has no wide form")
    result = _TWICE[kind] if part == "wide" else kind
    product: Function = {"lo": np.multiply, "hi": _high_product, "wide": _wide_product}[part]
    if m.root == "mul":
        return Op((result,), (kind, kind), single(product))
    return Op((result,), (kind, kind, result), single(lambda a, b, c: product(a, b) + c))


def _wide_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    twice = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(twice) * b.astype(twice)


def _high_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.itemsize < 8:
        return (_wide_product(a, b) >> 8 * a.dtype.itemsize).astype(a.dtype)
    low = np.uint64(0xFFFFFFFF)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    x0, x1, y0, y1 = x & low, x >> 32, y & low, y >> 32
    middle = x1 * y0 + (x0 * y0 >> 32)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> 32) + (other >> 32)
    if a.dtype.kind == "i":  # an operand read as unsigned is 2**64 too large where it is negative
        high = high - np.where(a < 0, y, 0) - np.where(b < 0, x, 0)
    return high.astype(a.dtype)


@pure("div", "rem", types=WORDS)
def div(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: div, rem. Toward zero; a zero divisor is unspecified there and an error here."""
    kind = m.type(*WORDS)
    return Op((kind,), (kind, kind), single(_quotient if m.root == "div" else _remainder))


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if (b == 0).any():
        raise ExecutionError("integer division by zero")
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    magnitude = np.abs(a).astype(unsigned) // np.abs(b).astype(unsigned)  # |most negative| is right as unsigned
    return np.where((a < 0) != (b < 0), -magnitude, magnitude).astype(a.dtype)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a - _quotient(a, b) * b


@pure("min", "max", types=WORDS + HALVES)
def minimum(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: min, max. `.relu` (s32, s16x2) clamps a negative result to zero."""
    function: Function = np.minimum if m.root == "min" else np.maximum
    if m.flag("relu"):
        kind = m.type("s32", "s16x2")
        plain = function

        def function(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.maximum(plain(a, b), a.dtype.type(0))

        return _binary(kind, function)
    return _binary(m.type(*WORDS, *HALVES), function)


@pure("abs", "neg", types=("s16", "s32", "s64"))
def absolute(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: abs, neg. The most negative number stays itself."""
    kind = m.type("s16", "s32", "s64")
    return Op((kind,), (kind,), single(np.abs if m.root == "abs" else np.negative))


@pure("popc", "clz", types=("b32", "b64"))
def popc(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: popc, clz. Number of ones; of zeros above the highest one."""
    kind = m.type("b32", "b64")
    return Op(("u32",), (kind,), single(_population if m.root == "popc" else _leading_zeros))


def _population(a: np.ndarray) -> np.ndarray:
    return np.unpackbits(_bytes(a), axis=-1).sum(-1, dtype=np.uint32)


def _leading_zeros(a: np.ndarray) -> np.ndarray:
    bits = np.unpackbits(_bytes(a.byteswap()), axis=-1)
    return np.where(a == 0, 8 * a.dtype.itemsize, bits.argmax(-1)).astype(np.uint32)


def _bytes(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a).view(np.uint8).reshape(-1, a.dtype.itemsize)


@pure("brev", types=("b32", "b64"))
def brev(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: brev. Reverses the order of the bits."""
    kind = m.type("b32", "b64")

    def reverse(a: np.ndarray) -> np.ndarray:
        bits = np.unpackbits(_bytes(a.byteswap()), axis=-1)[:, ::-1]
        return np.packbits(bits, axis=-1).view(a.dtype).reshape(-1).byteswap()

    return Op((kind,), (kind,), single(reverse))


@pure("bfind", types=("u32", "u64", "s32", "s64"))
def bfind(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: bfind. Place of the highest bit unlike the sign; all ones if none."""
    as_shift = m.flag("shiftamt")
    kind = m.type("u32", "u64", "s32", "s64")
    width = SCALARS[kind].bits

    def find(a: np.ndarray) -> np.ndarray:
        magnitude = np.where(a < 0, ~a, a).astype(f"u{width // 8}")
        place = (width - 1) - _leading_zeros(magnitude).astype(np.int64)
        place = np.where(magnitude == 0, 0xFFFFFFFF, width - 1 - place if as_shift else place)
        return place.astype(np.uint32)

    return Op(("u32",), (kind,), single(find))


@pure("bfe", types=("u32", "u64", "s32", "s64"))
def bfe(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: bfe. `c` bits of `a` from bit `b` on, with the field's sign for signed types."""
    kind = m.type("u32", "u64", "s32", "s64")
    width = SCALARS[kind].bits

    def extract(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = start.astype(np.int64) & 0xFF, length.astype(np.int64) & 0xFF
        unsigned = a.view(f"u{width // 8}")
        field = _shift_right(unsigned, start) & _ones(length, unsigned.dtype)
        if a.dtype.kind == "u":
            return field
        top = _shift_right(unsigned, np.clip(start + length - 1, 0, width - 1)) & 1
        filled = np.minimum(length, np.maximum(width - start, 0))
        negative = (top == 1) & (length > 0)
        return np.where(negative, field | ~_ones(filled, unsigned.dtype), field).astype(unsigned.dtype).view(a.dtype)

    return Op((kind,), (kind, "u32", "u32"), single(extract))


@pure("bfi", types=("b32", "b64"))
def bfi(m: Modifiers) -> Op:
    """Integer Arithmetic Instructions: bfi. Puts the low `d` bits of `a` over `b` from bit `c` on."""
    kind = m.type("b32", "b64")

    def insert(a: np.ndarray, b: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = start.astype(np.int64) & 0xFF, length.astype(np.int64) & 0xFF
        mask = shift_left(_ones(length, a.dtype), start)
        return (b & ~mask) | (shift_left(a, start) & mask)

    return Op((kind,), (kind, kind, "u32", "u32"), single(insert))


def _ones(count: np.ndarray, dtype: np.dtype) -> np.ndarray:
    width = 8 * dtype.itemsize
    full = np.array([np.iinfo(dtype).max], dtype)
    return np.where(count >= width, full, ~shift_left(full, np.minimum(count, width)))


def _shift_right(a: np.ndarray, count: np.ndarray) -> np.ndarray:
    width = 8 * a.dtype.itemsize
    shifted = a >> np.minimum(count, width - 1).astype(a.dtype)
    return np.where(count >= width, np.zeros(1, a.dtype), shifted)
