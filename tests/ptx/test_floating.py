"""Floating-point arithmetic against exact fractions, rounded by searching the format's codes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.ptx import oracle
from tests.ptx.errors import UnknownInstructionError
from tests.ptx.formats import sum_to_odd
from tests.ptx.instructions.pure import evaluate

COUNT = 1000
ROUNDINGS = ("rn", "rz", "rm", "rp")
BITS = {"f32": 32, "f16": 16, "bf16": 16}

Numbers = Callable[..., oracle.Number]


def expected(function: Numbers, row: tuple[int, ...], name: str, rounding: str, flags: tuple[str, ...]) -> int:
    if "ftz" in flags:
        row = tuple(oracle.flushed(bits, name) for bits in row)
    value = function(*(oracle.decode(bits, name) for bits in row))
    nan = isinstance(value, float) and math.isnan(value)
    code = oracle.encode(value, name, rounding)
    if "ftz" in flags:
        code = oracle.flushed(code, name)
    if "relu" in flags and not nan and code >> BITS[name] - 1:
        return 0
    if "sat" in flags:
        number = oracle.decode(code, name)
        return 0 if nan or number <= 0 else min(code, oracle.encode(Fraction(1), name))
    return code


def check(opcode: str, function: Numbers, name: str, arrays: list[np.ndarray]) -> None:
    """Compare the bits of an opcode with `function` over exact numbers, rounded as the opcode says."""
    parts = opcode.split(".")
    rounding = next((part for part in parts if part in ROUNDINGS), "rn")
    got = np.asarray(evaluate(opcode, *arrays)).view(arrays[0].dtype)
    for at, row in enumerate(zip(*(array.tolist() for array in arrays), strict=True)):
        want = expected(function, row, name, rounding, tuple(parts))
        assert int(got[at]) == want, f"{opcode} {[hex(x) for x in row]}: {int(got[at]):#x}, expected {want:#x}"


def packed(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Pairs of neighbours in one register twice as wide."""
    return [array.view(f"u{2 * array.dtype.itemsize}") for array in arrays]


def operands(name: str, count: int, seed: int = 0, size: int = COUNT) -> list[np.ndarray]:
    return [oracle.float_samples(name, size, 7 * seed + place) for place in range(count)]


def subtract(a: oracle.Number, b: oracle.Number, rounding: str = "rn") -> oracle.Number:
    return oracle.add(a, oracle.negate(b), rounding)


def with_rounding(function: Numbers, rounding: str) -> Numbers:
    return lambda *values: function(*values, rounding)


def fused(a: oracle.Number, b: oracle.Number, c: oracle.Number, rounding: str = "rn") -> oracle.Number:
    return oracle.add(oracle.multiply(a, b), c, rounding)


SUMS = {"add": oracle.add, "sub": subtract}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("root", ["add", "sub", "mul", "fma", "mad"])
def test_single_precision(root: str, rounding: str) -> None:
    function = {**SUMS, "fma": fused, "mad": fused}.get(root)
    reference = with_rounding(function, rounding) if function else oracle.multiply
    arrays = operands("f32", 3 if root in ("fma", "mad") else 2, seed=len(root))
    check(f"{root}.{rounding}.f32", reference, "f32", arrays)
    check(f"{root}.{rounding}.ftz.f32", reference, "f32", arrays)
    check(f"{root}.{rounding}.sat.f32", reference, "f32", arrays)
    if root != "mad":
        pairs = packed(arrays)
        got = np.asarray(evaluate(f"{root}.{rounding}.f32x2", *pairs)).view(np.uint32)
        assert (got == np.asarray(evaluate(f"{root}.{rounding}.f32", *arrays)).view(np.uint32)).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("root", ["add", "sub", "mul", "fma"])
def test_half_precision(root: str, name: str) -> None:
    function = {**SUMS, "mul": oracle.multiply, "fma": fused}[root]
    arrays = operands(name, 3 if root == "fma" else 2, seed=len(root))
    check(f"{root}.rn.{name}", function, name, arrays)
    check(f"{root}.{name}", function, name, arrays)
    if root == "fma":
        check(f"fma.rn.relu.{name}", function, name, arrays)
    got = np.asarray(evaluate(f"{root}.rn.{name}x2", *packed(arrays))).view(np.uint16)
    assert (got == np.asarray(evaluate(f"{root}.rn.{name}", *arrays)).view(np.uint16)).all()
    with pytest.raises(UnknownInstructionError, match="rounding"):
        evaluate(f"{root}.rz.{name}", *arrays)


def test_fma_rounds_once() -> None:
    """Products that are a tie of the result format, and addends far below it that must break the tie."""
    for name in ("bf16", "f16", "f32"):
        layout = oracle.LAYOUTS[name]
        dtype = np.dtype(f"u{layout.bits // 8}")
        one, bits = layout.bias << layout.fraction_bits, layout.fraction_bits
        x = one + (1 << bits - (bits + 1) // 2)  # 1 + 2**-i and 1 + 2**-j with i + j one below the last bit
        y = one + (1 << bits - (bits + 1 - (bits + 1) // 2))
        product = oracle.multiply(oracle.decode(x, name), oracle.decode(y, name))
        assert (product * 2 ** (bits + 1)).denominator == 1, "the product is a tie"
        assert (product * 2**bits).denominator == 2, "the product is a tie"
        tiny = [sign << layout.bits - 1 | code for sign in (0, 1) for code in (0, 1, 2, 1 << layout.fraction_bits)]
        rows = [(x + d, y - d, t) for d in range(64) for t in tiny]
        arrays = [np.array(column, dtype) for column in zip(*rows, strict=True)]
        check(f"fma.rn.{name}", fused, name, arrays)


@pytest.mark.parametrize("shift", [1, 53, 60, 100, 300])
def test_sum_to_odd_keeps_what_float64_loses(shift: int) -> None:
    x = np.array([1.0, 1.0 + 2**-52, 1.5, -1.0, -1.0 - 2**-52, 2.0])
    y = np.ldexp(np.array([1.0, -1.0, 0.75, 1.0, -1.0, -1.0]), -shift)
    for a, b, odd in zip(x.tolist(), y.tolist(), sum_to_odd(x, y).tolist(), strict=True):
        exact = Fraction(a) + Fraction(b)
        if Fraction(odd) == exact:
            continue
        below, above = sorted((odd, math.nextafter(odd, math.inf if Fraction(odd) < exact else -math.inf)))
        assert Fraction(below) < exact < Fraction(above)
        assert np.float64(odd).view(np.int64) & 1 == 1


def test_double_precision() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(COUNT) * 10.0 ** rng.integers(-30, 30, COUNT) for _ in range(2))
    for root, function in (
        ("add", float.__add__),
        ("sub", float.__sub__),
        ("mul", float.__mul__),
        ("div", float.__truediv__),
    ):
        opcode = f"{root}.rn.f64"
        want = [function(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert evaluate(opcode, a, b).tolist() == want
    assert evaluate("sqrt.rn.f64", np.abs(a)).tolist() == [math.sqrt(x) for x in np.abs(a).tolist()]
    assert evaluate("rcp.rn.f64", a).tolist() == [1.0 / x for x in a.tolist()]
    assert evaluate("neg.f64", a).tolist() == (-a).tolist()
    assert evaluate("abs.f64", a).tolist() == np.abs(a).tolist()
    with pytest.raises(UnknownInstructionError, match=r"only \.rn"):
        evaluate("add.rz.f64", a, b)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_mixed_precision(name: str, rounding: str) -> None:
    """One or two narrow sources and an f32 one; the sum of a narrow value and an f32 rounds once."""
    narrow = operands(name, 2, seed=20)
    (c,) = operands("f32", 1, seed=21)
    values = [[oracle.decode(bits, name) for bits in array.tolist()] for array in narrow]
    third = [oracle.decode(bits, "f32") for bits in c.tolist()]
    rows = list(zip(*values, third, strict=True))
    wanted = {
        "add": [oracle.add(x, z, rounding) for x, _, z in rows],
        "sub": [subtract(x, z, rounding) for x, _, z in rows],
        "fma": [fused(x, y, z, rounding) for x, y, z in rows],
    }
    for root, want in wanted.items():
        sources = [*(narrow if root == "fma" else narrow[:1]), c]
        for sat in ("", "sat."):
            got = np.asarray(evaluate(f"{root}.{rounding}.{sat}f32.{name}", *sources)).view(np.uint32)
            for value, bits in zip(want, got.tolist(), strict=True):
                code = oracle.encode(value, "f32", rounding)
                if sat:
                    nan = isinstance(value, float) and math.isnan(value)
                    code = 0 if nan or value <= 0 else min(code, 0x3F800000)
                assert bits == code, (root, value)


def divide(a: oracle.Number, b: oracle.Number) -> oracle.Number:
    negative = (math.copysign(1, a) < 0) != (math.copysign(1, b) < 0)
    zero, infinite = (-0.0, -math.inf) if negative else (0.0, math.inf)
    a_special, b_special = isinstance(a, float), isinstance(b, float)
    if (a_special and math.isnan(a)) or (b_special and math.isnan(b)):
        return math.nan
    if a_special and b_special:
        return math.nan if (a == 0) == (b == 0) else zero if a == 0 else infinite
    if a_special:
        return zero if a == 0 else infinite
    if b_special:
        return infinite if b == 0 else zero
    return Fraction(a) / Fraction(b)


def test_quotients() -> None:
    a, b = operands("f32", 2, seed=5)
    check("div.rn.f32", divide, "f32", [a, b])
    check("div.rn.ftz.f32", divide, "f32", [a, b])
    check("rcp.rn.f32", lambda x: divide(Fraction(1), x), "f32", [a])
    for opcode in ("div.full.f32", "div.approx.f32", "rcp.approx.ftz.f32", "ex2.approx.f32", "sqrt.approx.f32"):
        with pytest.raises(UnknownInstructionError):
            evaluate(opcode, a, b)


def test_square_root() -> None:
    (a,) = operands("f32", 1, seed=6)
    got = np.asarray(evaluate("sqrt.rn.f32", a)).view(np.uint32)
    for bits, root in zip(a.tolist(), got.tolist(), strict=True):
        value, result = oracle.decode(bits, "f32"), oracle.decode(root, "f32")
        if isinstance(value, float) or value < 0:
            keeps = not isinstance(value, Fraction) and (value == 0 or value == math.inf)
            assert root == (bits if keeps else 0x7FFFFFFF)
            continue
        ulp = oracle.decode(root + 1, "f32") - result
        assert (result - ulp / 2) ** 2 < value < (result + ulp / 2) ** 2


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_sign_operations(name: str) -> None:
    (a,) = operands(name, 1)
    sign = 1 << BITS[name] - 1
    forms = [name] if name == "f32" else [name, f"{name}x2"]
    for form in forms:
        source = packed([a])[0] if form.endswith("x2") else a
        assert (np.asarray(evaluate(f"neg.{form}", source)).view(a.dtype) == a ^ a.dtype.type(sign)).all()
        assert (np.asarray(evaluate(f"abs.{form}", source)).view(a.dtype) == a & a.dtype.type(sign - 1)).all()
    if name == "f32":
        got = np.asarray(evaluate("abs.ftz.f32", a)).view(np.uint32)
        assert got.tolist() == [oracle.flushed(x & sign - 1, "f32") for x in a.tolist()]
        b = operands(name, 1, seed=9)[0]
        got = np.asarray(evaluate("copysign.f32", a, b)).view(np.uint32)
        assert (got == ((b & np.uint32(sign - 1)) | (a & np.uint32(sign)))).all()
        x, y = np.array([1.5, -2.5, -0.0]), np.array([-3.0, 4.0, 5.0])
        assert evaluate("copysign.f64", x, y).tolist() == [3.0, -4.0, -5.0]
