"""Comparisons, extremes, questions and selections: of floats by exact fractions, of integers by Python's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from tests.ptx import oracle
from tests.ptx.errors import UnknownInstructionError
from tests.ptx.instructions.pure import evaluate

COUNT = 1000

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def operands(name: str, count: int, seed: int) -> list[np.ndarray]:
    return [oracle.float_samples(name, COUNT, 7 * seed + place) for place in range(count)]


def extreme(largest: bool, propagate: bool, name: str) -> Callable[..., int]:
    """min or max over bits, by the ISA's text: NaN rules first, then -0 below +0."""

    def choose(*bits: int) -> int:
        numbers = [x for x in bits if not _nan(x, name)]
        if not numbers or (propagate and len(numbers) < len(bits)):
            return oracle.CANONICAL_NAN[name]

        def order(x: int) -> tuple[Fraction | float, bool]:
            return oracle.decode(x, name), not x >> oracle.LAYOUTS[name].bits - 1

        return (max if largest else min)(numbers, key=order)

    return choose


def _nan(bits: int, name: str) -> bool:
    value = oracle.decode(bits, name)
    return isinstance(value, float) and math.isnan(value)


def _forms() -> Iterator[tuple[str, str, int]]:
    for name in ("f32", "f16", "bf16"):
        for form in ("", "NaN.", "xorsign.abs.", "NaN.xorsign.abs."):
            yield name, form, 2
    for form in ("", "NaN.", "abs.", "NaN.abs."):
        yield "f32", form, 3
    yield "f32", "ftz.", 2


@pytest.mark.parametrize("root", ["min", "max"])
@pytest.mark.parametrize(("name", "form", "count"), list(_forms()))
def test_extremes(root: str, name: str, form: str, count: int) -> None:
    arrays = operands(name, count, seed=11)
    sign = 1 << oracle.LAYOUTS[name].bits - 1
    choose = extreme(root == "max", "NaN" in form, name)

    def reference(*row: int) -> int:
        if "ftz" in form:
            row = tuple(oracle.flushed(bits, name) for bits in row)
        if "abs" not in form:
            return choose(*row)
        best = choose(*(bits & sign - 1 for bits in row))
        return best if _nan(best, name) or "xorsign" not in form else best | (row[0] ^ row[1]) & sign

    want = [reference(*row) for row in zip(*(array.tolist() for array in arrays), strict=True)]
    assert np.asarray(evaluate(f"{root}.{form}{name}", *arrays)).view(arrays[0].dtype).tolist() == want
    if name != "f32":
        got = np.asarray(evaluate(f"{root}.{form}{name}x2", *(array.view(np.uint32) for array in arrays))).view(
            np.uint16
        )
        assert got.tolist() == want


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("ftz", [False, True])
def test_comparisons(name: str, ftz: bool) -> None:
    if name == "f64":
        if ftz:
            return
        with np.errstate(invalid="ignore"):  # signalling NaNs
            arrays = [oracle.float_samples("f32", COUNT, s).view(np.float32).astype(np.float64) for s in (1, 2)]
        rows = [tuple(pair) for pair in zip(*(array.tolist() for array in arrays), strict=True)]
    else:
        arrays = operands(name, 2, seed=13)
        arrays[1][::3] = arrays[0][::3]
        sources = [[oracle.flushed(x, name) if ftz else x for x in array.tolist()] for array in arrays]
        rows = [(oracle.decode(x, name), oracle.decode(y, name)) for x, y in zip(*sources, strict=True)]
    nan = np.array([any(isinstance(v, float) and math.isnan(v) for v in row) for row in rows])
    for base, function in COMPARE.items():
        plain = np.array([function(*row) for row in rows])
        for operator, want in ((base, plain & ~nan), (f"{base}u", plain | nan)):
            yes, no = evaluate(f"setp.{operator}.{'ftz.' if ftz else ''}{name}", *arrays)
            assert (yes == want).all(), operator
            assert (no == ~want).all(), operator
    assert (evaluate(f"setp.num.{name}", *arrays)[0] == ~nan).all()
    assert (evaluate(f"setp.nan.{name}", *arrays)[0] == nan).all()
    assert (
        evaluate(f"set.geu.u32.{name}", *arrays) == np.where(evaluate(f"setp.geu.{name}", *arrays)[0], 2**32 - 1, 0)
    ).all()
    if name in ("f32", "f64"):
        assert (evaluate(f"set.ltu.f32.{name}", *arrays) == (evaluate(f"setp.ltu.{name}", *arrays)[0] * 1.0)).all()
    with pytest.raises(UnknownInstructionError, match="does not compare"):
        evaluate(f"setp.lo.{name}", *arrays)


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_properties(name: str, dtype: type) -> None:
    tiny = np.finfo(dtype).tiny
    a = np.array([0.0, -0.0, 1.0, -tiny, tiny / 2, -tiny / 4, np.inf, -np.inf, np.nan], dtype)
    table = {
        "finite": "111111000", "infinite": "000000110", "number": "111111110", "notanumber": "000000001",
        "normal": "001100000", "subnormal": "000011000",
    }  # fmt: skip
    for question, answers in table.items():
        assert evaluate(f"testp.{question}.{name}", a).tolist() == [answer == "1" for answer in answers]


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_integer_comparisons(bits: int) -> None:
    a, b = (oracle.samples(bits, COUNT, seed) for seed in (0, 1))
    b[::3] = a[::3]
    third = np.random.default_rng(1).random(COUNT) < 0.5
    for kind in (f"u{bits}", f"s{bits}", f"b{bits}"):
        given = [[oracle.signed(x, bits) if kind[0] == "s" else x for x in array.tolist()] for array in (a, b)]
        rows = list(zip(*given, strict=True))
        names = ("eq", "ne") if kind[0] == "b" else (*COMPARE, *(UNSIGNED if kind[0] == "u" else ()))
        for name in names:
            reference = COMPARE[UNSIGNED.get(name, name)]
            expected = np.array([reference(*row) for row in rows])
            yes, no = evaluate(f"setp.{name}.{kind}", a, b)
            assert (yes == expected).all(), (name, kind)
            assert (no == ~expected).all(), (name, kind)
            for combine, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
                yes, no = evaluate(f"setp.{name}.{combine}.{kind}", a, b, third)
                assert (yes == function(expected, third)).all(), (name, combine, kind)
                assert (no == function(~expected, third)).all(), (name, combine, kind)
            assert (evaluate(f"set.{name}.u32.{kind}", a, b) == np.where(expected, 0xFFFFFFFF, 0)).all()
            assert (evaluate(f"set.{name}.s32.{kind}", a, b) == np.where(expected, -1, 0)).all()
            assert (evaluate(f"set.{name}.or.f32.{kind}", a, b, third) == np.where(expected | third, 1.0, 0.0)).all()
    with pytest.raises(UnknownInstructionError, match="does not compare"):
        evaluate(f"setp.lo.s{bits}", a, b)
    with pytest.raises(UnknownInstructionError, match="does not compare"):
        evaluate(f"setp.lt.b{bits}", a, b)


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"])
def test_select(kind: str) -> None:
    bits = int(kind[1:])
    a, b = oracle.samples(bits, COUNT, 1), oracle.samples(bits, COUNT, 2)
    p = np.arange(COUNT) % 3 == 0
    got = np.asarray(evaluate(f"selp.{kind}", a, b, p)).view(a.dtype)
    assert (got == np.where(p, a, b)).all()


def test_select_by_sign() -> None:
    a, b = oracle.samples(32, 8, 1), oracle.samples(32, 8, 2)
    c = np.array([0.0, -0.0, 1.0, -1.0, math.nan, -math.nan, 1e-45, -1e-45], np.float32)
    first = np.array([1, 1, 1, 0, 0, 0, 1, 0], bool)
    assert (evaluate("slct.u32.f32", a, b, c) == np.where(first, a, b)).all()
    first[7] = True  # flushed to -0
    assert (evaluate("slct.ftz.s32.f32", a, b, c).view(np.uint32) == np.where(first, a, b)).all()
    d = np.array([0, 1, -1, 2**31 - 1, -(2**31), 5, -5, 0], np.int32)
    assert (evaluate("slct.f32.s32", a, b, d).view(np.uint32) == np.where(d >= 0, a, b)).all()
