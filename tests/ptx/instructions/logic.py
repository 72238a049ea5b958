"""Logic and shifts (PTX ISA, Logic and Shift Instructions), and the byte permutation prmt."""

from __future__ import annotations

import numpy as np

from tests.ptx.scalars import SCALARS

from .pure import Modifiers, Op, pure, single

BITS = ("b16", "b32", "b64")
_FUNCTIONS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@pure("and", "or", "xor", types=("pred", *BITS))
def bitwise(m: Modifiers) -> Op:
    """Logic and Shift Instructions: and, or, xor."""
    kind = m.type("pred", *BITS)
    return Op((kind,), (kind, kind), single(_FUNCTIONS[m.root]))


@pure("not", types=("pred", *BITS))
@pure("cnot", types=BITS)
def invert(m: Modifiers) -> Op:
    """Logic and Shift Instructions: not, and cnot, which is 1 for zero and 0 for anything else."""
    (kind,) = m.types(1)
    if m.root == "not":
        return Op((kind,), (kind,), single(np.invert))
    return Op((kind,), (kind,), single(lambda a: (a == 0).astype(a.dtype)))


@pure("lop3", types=("b32",))
def lop3(m: Modifiers) -> Op:
    """Logic and Shift Instructions: lop3. Bit i of the table is the result where a, b, c spell i."""
    m.type("b32")

    def look_up(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape, table.shape), np.uint32)
        for row in range(8):
            chosen = [source if row >> place & 1 else ~source for source, place in ((a, 2), (b, 1), (c, 0))]
            result |= np.where(table >> row & 1, chosen[0] & chosen[1] & chosen[2], np.uint32(0))
        return result

    return Op(("b32",), ("b32", "b32", "b32", "u32"), single(look_up))


@pure("shl", types=BITS)
def shl(m: Modifiers) -> Op:
    """Logic and Shift Instructions: shl. Shifts of the register's width or more give zero."""
    kind = m.type(*BITS)
    return Op((kind,), (kind, "u32"), single(shift_left))


@pure("shr", types=("u16", "u32", "u64", "s16", "s32", "s64", *BITS))
def shr(m: Modifiers) -> Op:
    """Logic and Shift Instructions: shr. Signed types fill with the sign; larger counts shift by the width."""
    (kind,) = m.types(1)

    def shift(a: np.ndarray, count: np.ndarray) -> np.ndarray:
        width = SCALARS[kind].bits
        shifted = a >> np.minimum(count, width - 1).astype(a.dtype)
        beyond = np.where(a < 0, -1, 0).astype(a.dtype) if SCALARS[kind].signed else np.zeros(1, a.dtype)
        return np.where(count >= width, beyond, shifted)

    return Op((kind,), (kind, "u32"), single(shift))


def shift_left(a: np.ndarray, count: np.ndarray) -> np.ndarray:
    """`a << count`, zero where the count reaches the width."""
    width = 8 * a.dtype.itemsize
    shifted = a << np.minimum(count, width - 1).astype(a.dtype)
    return np.where(count >= width, np.zeros(1, a.dtype), shifted)


@pure("shf", types=("b32",))
def shf(m: Modifiers) -> Op:
    """Logic and Shift Instructions: shf. Shifts the 64 bits {b, a}; `.l` keeps the upper half, `.r` the lower."""
    direction, mode = m.one_of("l", "r"), m.one_of("clamp", "wrap")
    m.type("b32")

    def funnel(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        count = (np.minimum(c, 32) if mode == "clamp" else c & 31).astype(np.uint64)
        both = b.astype(np.uint64) << np.uint64(32) | a
        kept = both << count >> np.uint64(32) if direction == "l" else both >> count
        return (kept & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return Op(("b32",), ("b32", "b32", "u32"), single(funnel))


# For each mode and selector, the source bytes of result bytes 3, 2, 1, 0 (PTX ISA, prmt, table of the modes).
_PERMUTE_MODES = {
    "f4e": ("3210", "4321", "5432", "6543"),
    "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"),
    "rc16": ("1010", "3232", "1010", "3232"),
}


@pure("prmt", types=("b32", *_PERMUTE_MODES))
def prmt(m: Modifiers) -> Op:
    """Data Movement and Conversion Instructions: prmt.

    Without a mode each selector nibble names one of the eight bytes of {b, a}; its top bit asks for eight copies of
    that byte's sign instead. A mode reads two bits of `c` as a row of a fixed table.
    """
    mode = m.one_of(*_PERMUTE_MODES, default="")
    m.type("b32")

    def permute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        a, b, c = np.broadcast_arrays(a, b, c)
        source = (b.astype(np.uint64) << np.uint64(32)) | a
        result = np.zeros(a.shape, np.uint64)
        for place in range(4):
            if mode:
                table = np.array([int(row[3 - place]) for row in _PERMUTE_MODES[mode]], np.uint64)
                byte, sign = table[c & 3], np.zeros(a.shape, bool)
            else:
                nibble = c >> np.uint32(4 * place) & 0xF
                byte, sign = (nibble & 7).astype(np.uint64), (nibble & 8) != 0
            value = source >> (byte * np.uint64(8)) & np.uint64(0xFF)
            value = np.where(sign, np.where(value & np.uint64(0x80), np.uint64(0xFF), np.uint64(0)), value)
            result |= value << np.uint64(8 * place)
        return result.astype(np.uint32)

    return Op(("b32",), ("b32", "b32", "u32"), single(permute))
