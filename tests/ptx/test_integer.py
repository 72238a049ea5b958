"""Integer arithmetic and logic against Python integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.ptx import oracle
from tests.ptx.errors import ExecutionError, UnknownInstructionError
from tests.ptx.instructions.pure import evaluate

COUNT = 600
SIGNED_TYPES = ("s16", "s32", "s64")
WORDS = ("u16", "u32", "u64", *SIGNED_TYPES)

Reference = Callable[..., int]


def width(kind: str) -> int:
    return 32 if kind.endswith("x2") else int(kind[1:])


def read(value: int, kind: str) -> int:
    return oracle.signed(value, width(kind)) if kind[0] == "s" else value


def halves(function: Reference, kind: str) -> Reference:
    """Apply a function of two 16-bit values to both halves."""
    element = f"{kind[0]}16"

    def both(a: int, b: int) -> int:
        parts = [function(read(a >> s & 0xFFFF, element), read(b >> s & 0xFFFF, element)) & 0xFFFF for s in (0, 16)]
        return parts[1] << 16 | parts[0]

    return both


def check(opcode: str, kinds: tuple[str, ...], result: str, reference: Reference, arrays: list[np.ndarray]) -> None:
    """Compare bits of one opcode with `reference`, which takes and gives Python integers read as the types say."""
    got = np.asarray(evaluate(opcode, *arrays))
    bits = got.astype(np.uint8) if result == "pred" else got.view(f"u{got.dtype.itemsize}")
    modulus = 2 if result == "pred" else 1 << width(result)
    for at, row in enumerate(zip(*(array.tolist() for array in arrays), strict=True)):
        expected = reference(*(read(value, kind) for value, kind in zip(row, kinds, strict=True))) % modulus
        assert int(bits[at]) == expected, f"{opcode} {[hex(value) for value in row]}"


def inputs(*kinds: str, seed: int = 0) -> list[np.ndarray]:
    return [oracle.samples(width(kind), COUNT, seed + place) for place, kind in enumerate(kinds)]


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


@pytest.mark.parametrize("kind", [*WORDS, "u16x2", "s16x2"])
@pytest.mark.parametrize(
    ("root", "function"),
    [("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("min", min), ("max", max)],
)
def test_two_operands(root: str, function: Reference, kind: str) -> None:
    reference = halves(function, kind) if kind.endswith("x2") else function
    check(f"{root}.{kind}", (f"u{width(kind)}",) * 2 if kind.endswith("x2") else (kind, kind), kind, reference,
          inputs(kind, kind))  # fmt: skip


@pytest.mark.parametrize(("root", "function"), [("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)])
def test_saturation(root: str, function: Reference) -> None:
    check(f"{root}.sat.s32", ("s32", "s32"), "s32", lambda a, b: clamp(function(a, b), -(2**31), 2**31 - 1),
          inputs("s32", "s32"))  # fmt: skip


@pytest.mark.parametrize("root", ["min", "max"])
def test_relu(root: str) -> None:
    function = {"min": min, "max": max}[root]
    positive = lambda a, b: max(0, function(a, b))  # noqa: E731
    check(f"{root}.relu.s32", ("s32", "s32"), "s32", positive, inputs("s32", "s32"))
    check(f"{root}.relu.s16x2", ("u32", "u32"), "u32", halves(positive, "s16x2"), inputs("u32", "u32"))


@pytest.mark.parametrize("kind", WORDS)
def test_products(kind: str) -> None:
    bits = width(kind)
    check(f"mul.lo.{kind}", (kind, kind), kind, lambda a, b: a * b, inputs(kind, kind))
    check(f"mul.hi.{kind}", (kind, kind), kind, lambda a, b: a * b >> bits, inputs(kind, kind))
    three = inputs(kind, kind, kind)
    check(f"mad.lo.{kind}", (kind,) * 3, kind, lambda a, b, c: a * b + c, three)
    check(f"mad.hi.{kind}", (kind,) * 3, kind, lambda a, b, c: (a * b >> bits) + c, three)
    if bits < 64:
        twice = f"{kind[0]}{2 * bits}"
        check(f"mul.wide.{kind}", (kind, kind), twice, lambda a, b: a * b, inputs(kind, kind))
        check(f"mad.wide.{kind}", (kind, kind, twice), twice, lambda a, b, c: a * b + c, inputs(kind, kind, twice))
    else:
        with pytest.raises(UnknownInstructionError, match="wide"):
            evaluate(f"mul.wide.{kind}", *inputs(kind, kind))


def quotient(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("kind", WORDS)
def test_division(kind: str) -> None:
    a, b = inputs(kind, kind)
    b[b == 0] = 3
    check(f"div.{kind}", (kind, kind), kind, quotient, [a, b])
    check(f"rem.{kind}", (kind, kind), kind, lambda x, y: x - quotient(x, y) * y, [a, b])
    b[5] = 0
    with pytest.raises(ExecutionError, match="division by zero"):
        evaluate(f"div.{kind}", a, b)


@pytest.mark.parametrize("kind", SIGNED_TYPES)
def test_sign(kind: str) -> None:
    check(f"abs.{kind}", (kind,), kind, abs, inputs(kind))
    check(f"neg.{kind}", (kind,), kind, lambda a: -a, inputs(kind))


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_counts(bits: int) -> None:
    kind = f"b{bits}"
    check(f"popc.{kind}", (kind,), "u32", lambda a: a.bit_count(), inputs(kind))
    check(f"clz.{kind}", (kind,), "u32", lambda a: bits - a.bit_length(), inputs(kind))
    check(f"brev.{kind}", (kind,), kind, lambda a: int(f"{a:0{bits}b}"[::-1], 2), inputs(kind))
    for sign in "us":
        typed = f"{sign}{bits}"

        def place(a: int) -> int:
            magnitude = ~a if a < 0 else a
            return magnitude.bit_length() - 1  # -1, all ones, where there is no bit

        check(f"bfind.{typed}", (typed,), "u32", place, inputs(typed))
        check(f"bfind.shiftamt.{typed}", (typed,), "u32", lambda a: bits - 1 - place(a) if place(a) >= 0 else -1,
              inputs(typed))  # fmt: skip


def extract(a: int, start: int, length: int, kind: str) -> int:
    """bfe as the ISA's loop over result bits."""
    top = width(kind) - 1
    start, length = start & 0xFF, length & 0xFF
    unsigned = a % (1 << width(kind))
    sign = 0 if kind[0] == "u" or length == 0 else unsigned >> min(start + length - 1, top) & 1
    bits = [unsigned >> start + i & 1 if i < length and start + i <= top else sign for i in range(top + 1)]
    return sum(bit << i for i, bit in enumerate(bits))


@pytest.mark.parametrize("kind", ["u32", "u64", "s32", "s64"])
def test_bit_field_extract(kind: str) -> None:
    a, start, length = inputs(kind, "u32", "u32")
    start[::2] %= 70
    length[::2] %= 70
    check(f"bfe.{kind}", (kind, "u32", "u32"), kind, lambda x, s, n: extract(x, s, n, kind), [a, start, length])


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_field_insert(bits: int) -> None:
    def insert(a: int, b: int, start: int, length: int) -> int:
        start, length = start & 0xFF, length & 0xFF
        for i in range(length):
            if start + i < bits:
                b = b & ~(1 << start + i) | (a >> i & 1) << start + i
        return b

    kind = f"b{bits}"
    arrays = inputs(kind, kind, "u32", "u32")
    for counts in arrays[2:]:
        counts[::2] %= 70
    check(f"bfi.{kind}", (kind, kind, "u32", "u32"), kind, insert, arrays)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits: int) -> None:
    kind = f"b{bits}"
    two = inputs(kind, kind)
    check(f"and.{kind}", (kind, kind), kind, lambda a, b: a & b, two)
    check(f"or.{kind}", (kind, kind), kind, lambda a, b: a | b, two)
    check(f"xor.{kind}", (kind, kind), kind, lambda a, b: a ^ b, two)
    check(f"not.{kind}", (kind,), kind, lambda a: ~a, two[:1])
    check(f"cnot.{kind}", (kind,), kind, lambda a: int(a == 0), two[:1])


def test_predicate_logic() -> None:
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    assert evaluate("and.pred", a, b).tolist() == [False, False, False, True]
    assert evaluate("or.pred", a, b).tolist() == [False, True, True, True]
    assert evaluate("xor.pred", a, b).tolist() == [False, True, True, False]
    assert evaluate("not.pred", a).tolist() == [True, True, False, False]


@pytest.mark.parametrize("table", range(256))
def test_lop3(table: int) -> None:
    a, b, c = np.uint32(0xF0), np.uint32(0xCC), np.uint32(0xAA)  # the ISA's way to read a table off an expression
    assert int(evaluate("lop3.b32", a, b, c, np.uint32(table))[0]) & 0xFF == table


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts(bits: int) -> None:
    a, count = inputs(f"b{bits}", "u32")
    count[::2] %= bits + 3
    shifts = (f"b{bits}", "u32")
    check(f"shl.b{bits}", shifts, f"b{bits}", lambda x, n: x << min(n, bits), [a, count])
    for kind in (f"b{bits}", f"u{bits}", f"s{bits}"):
        check(f"shr.{kind}", (kind, "u32"), kind, lambda x, n: x >> min(n, bits), [a, count])


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shift(mode: str) -> None:
    arrays = inputs("b32", "b32", "u32")
    arrays[2][::2] %= 40

    def count(c: int) -> int:
        return min(c, 32) if mode == "clamp" else c & 31

    kinds = ("b32", "b32", "u32")
    check(f"shf.l.{mode}.b32", kinds, "b32", lambda a, b, c: (b << 32 | a) << count(c) >> 32, arrays)
    check(f"shf.r.{mode}.b32", kinds, "b32", lambda a, b, c: (b << 32 | a) >> count(c), arrays)


def test_permute() -> None:
    def generic(a: int, b: int, c: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        chosen = []
        for place in range(4):
            nibble = c >> 4 * place & 15
            byte = source[nibble & 7]
            chosen.append((0xFF if byte & 0x80 else 0) if nibble & 8 else byte)
        return int.from_bytes(bytes(chosen), "little")

    check("prmt.b32", ("b32", "b32", "u32"), "b32", generic, inputs("b32", "b32", "u32"))
    a, b = inputs("b32", "b32")
    for selectors in range(0, 65536, COUNT):  # every selector
        c = np.arange(selectors, selectors + COUNT, dtype=np.uint32)
        check("prmt.b32", ("b32", "b32", "u32"), "b32", generic, [a, b, c])


@pytest.mark.parametrize(
    ("mode", "byte"),
    [
        ("f4e", lambda place, s: place + s),
        ("b4e", lambda place, s: (s - place) % 8),
        ("rc8", lambda place, s: s),
        ("ecl", lambda place, s: max(place, s)),
        ("ecr", lambda place, s: min(place, s)),
        ("rc16", lambda place, s: (place & 1) | (s & 1) << 1),
    ],
)
def test_permute_modes(mode: str, byte: Callable[[int, int], int]) -> None:
    def expected(a: int, b: int, c: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        return int.from_bytes(bytes(source[byte(place, c & 3)] for place in range(4)), "little")

    check(f"prmt.b32.{mode}", ("b32", "b32", "u32"), "b32", expected, inputs("b32", "b32", "u32"))
