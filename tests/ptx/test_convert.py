"""Conversions: exhaustively over bf16 where the kernels depend on it, against ml_dtypes, torch and exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.ptx import oracle
from tests.ptx.errors import UnknownInstructionError
from tests.ptx.instructions.pure import evaluate

EVERY_BF16 = np.arange(65536, dtype=np.uint32).astype(np.uint16)
AS_F32 = (EVERY_BF16.astype(np.uint32) << 16).view(np.float32)
NAN = np.isnan(AS_F32)
COUNT = 600
SIGNS = np.array([0, 0x80], np.uint8)


def upper_and_lower(opcode: str, values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Convert values as the upper source and, shuffled, as the lower one; both results in the order of `values`."""
    order = np.random.default_rng(0).permutation(len(values))
    got = np.asarray(evaluate(opcode, values, values[order]))
    lower = np.empty_like(got)
    lower[order] = got & got.dtype.type((1 << bits) - 1)
    return got >> got.dtype.type(bits), lower


def test_e4m3_of_every_bf16() -> None:
    upper, lower = upper_and_lower("cvt.rn.satfinite.e4m3x2.f32", AS_F32, 8)
    with np.errstate(invalid="ignore"):
        expected = np.clip(AS_F32, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    expected[NAN] = 0x7F
    assert (upper == expected).all()
    assert (lower == expected).all()
    by_torch = torch.from_numpy(AS_F32).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert (upper[~NAN] == by_torch[~NAN]).all()


def test_e2m1_of_every_bf16() -> None:
    upper, lower = upper_and_lower("cvt.rn.satfinite.e2m1x2.f32", AS_F32, 4)
    # Each code covers the values between the half-way points; a tie goes to the even code (OCP MX v1.0, section 5.3.3).
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    magnitude = np.abs(AS_F32)
    code = (magnitude[:, None] > ties).sum(-1)
    for place, tie in enumerate(ties):
        code[magnitude == tie] = place + place % 2
    expected = code | np.signbit(AS_F32) << 3
    expected[NAN] = 7
    assert (upper == expected).all()
    assert (lower == expected).all()
    with np.errstate(invalid="ignore"):
        other = AS_F32.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    assert (upper[~NAN] == other[~NAN]).all()


@pytest.mark.parametrize(("name", "dtype"), [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)])
def test_fp8_of_random_f32(name: str, dtype: type) -> None:
    bits = oracle.float_samples("f32", 20 * COUNT, 1)
    bits[::2] = oracle.float_samples("f32", 10 * COUNT, 2) % np.uint32(1 << 27) + np.uint32(0x38000000)
    values = bits.view(np.float32)
    upper, _ = upper_and_lower(f"cvt.rn.satfinite.{name}x2.f32", values, 8)
    largest = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = np.clip(values, -largest, largest).astype(dtype).view(np.uint8)
    expected[np.isnan(values)] = 0x7F
    assert (upper == expected).all()
    for at in range(0, len(bits), 50):
        want = oracle.encode(oracle.decode(int(bits[at]), "f32"), name, satfinite=True)
        assert int(upper[at]) == want


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e2m1"])
def test_narrow_to_f16(name: str) -> None:
    width = oracle.LAYOUTS[name].bits
    codes = np.arange(1 << 2 * width, dtype=np.uint32).astype(np.uint8 if width == 4 else np.uint16)
    got = np.asarray(evaluate(f"cvt.rn.f16x2.{name}x2", codes)).astype(np.uint32)
    relu = np.asarray(evaluate(f"cvt.rn.relu.f16x2.{name}x2", codes)).astype(np.uint32)
    one = [oracle.decode(code, name) for code in range(1 << width)]
    table = np.array([oracle.encode(value, "f16") for value in one], np.uint32)
    positive = np.array([c if math.isnan(v) or not c >> 15 else 0 for c, v in zip(table, one, strict=True)], np.uint32)
    low, high = codes & codes.dtype.type((1 << width) - 1), codes >> codes.dtype.type(width)
    assert (got == table[high] << 16 | table[low]).all()
    assert (relu == positive[high] << 16 | positive[low]).all()


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_f16_pairs_to_fp8(name: str) -> None:
    halves = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    codes = np.asarray(evaluate(f"cvt.rn.satfinite.{name}x2.f16x2", halves.view(np.uint32))).view(np.uint8)
    assert codes.tolist() == [
        oracle.encode(oracle.decode(half, "f16"), name, satfinite=True) for half in halves.tolist()
    ]


def test_bf16_widens_and_narrows() -> None:
    assert (np.asarray(evaluate("cvt.f32.bf16", EVERY_BF16)).view(np.uint32) >> 16 == EVERY_BF16).all()
    back = np.asarray(evaluate("cvt.rn.bf16.f32", AS_F32))
    assert (back == np.where(NAN, 0x7FFF, EVERY_BF16)).all()
    bits = oracle.float_samples("f32", 50 * COUNT, 3)
    bits[::2] = bits[::2] & np.uint32(0xFFFF8000) | np.arange(25 * COUNT, dtype=np.uint32) % 3  # on and near ties
    values = bits.view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    expected[np.isnan(values)] = 0x7FFF
    by_torch = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert (by_torch[~np.isnan(values)] == expected[~np.isnan(values)]).all()
    assert (np.asarray(evaluate("cvt.rn.bf16.f32", values)) == expected).all()
    pairs = np.asarray(evaluate("cvt.rn.bf16x2.f32", values, np.roll(values, 1)))
    assert (pairs >> 16 == expected).all()
    assert (pairs & 0xFFFF == np.roll(expected, 1)).all()


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("form", ["rn", "rz", "rn.relu", "rz.satfinite", "rn.relu.satfinite", "rm", "rp", "rn.sat"])
def test_f32_to_half(name: str, form: str) -> None:
    bits = oracle.float_samples("f32", COUNT, 4)
    got = np.asarray(evaluate(f"cvt.{form}.{name}.f32", bits.view(np.float32))).view(np.uint16)
    parts = form.split(".")
    for source, code in zip(bits.tolist(), got.tolist(), strict=True):
        value = oracle.decode(source, "f32")
        nan = isinstance(value, float) and math.isnan(value)
        want = oracle.encode(value, name, parts[0], satfinite="satfinite" in parts)
        if "relu" in parts and not nan and want >> 15:
            want = 0
        if "sat" in parts:
            want = 0 if nan or value <= 0 else min(want, oracle.encode(Fraction(1), name))
        assert code == want, (hex(source), hex(code), hex(want))
    if form in ("rn", "rz", "rn.relu"):
        pairs = np.asarray(evaluate(f"cvt.{form}.{name}x2.f32", bits.view(np.float32), bits.view(np.float32)))
        assert (pairs == got.astype(np.uint32) << 16 | got).all()


def test_f16_widens() -> None:
    halves = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    got = np.asarray(evaluate("cvt.f32.f16", halves)).view(np.uint32)
    with np.errstate(invalid="ignore"):
        expected = torch.from_numpy(halves).view(torch.float16).to(torch.float32).numpy().view(np.uint32)
    expected[(halves & 0x7FFF) > 0x7C00] = 0x7FFFFFFF
    assert (got == expected).all()
    assert got[::37].tolist() == [oracle.encode(oracle.decode(half, "f16"), "f32") for half in halves[::37].tolist()]
    doubles = np.asarray(evaluate("cvt.f64.f16", halves))
    finite = np.isfinite(doubles)
    assert (doubles[finite] == halves.view(np.float16).astype(np.float64)[finite]).all()


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_f64_to_f32(rounding: str) -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal(COUNT) * 2.0 ** rng.integers(-160, 140, COUNT)
    got = np.asarray(evaluate(f"cvt.{rounding}.f32.f64", values)).view(np.uint32)
    assert got.tolist() == [oracle.encode(Fraction(value), "f32", rounding) for value in values.tolist()]
    back = np.asarray(evaluate("cvt.f64.f32", got.view(np.float32)))
    assert (back == got.view(np.float32).astype(np.float64)).all()


ROUND_TO_WHOLE = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("rounding", ROUND_TO_WHOLE)
@pytest.mark.parametrize("source", ["f32", "f16", "bf16", "f64"])
def test_float_to_integer(source: str, rounding: str) -> None:
    if source == "f64":
        rng = np.random.default_rng(6)
        array = rng.standard_normal(COUNT) * 2.0 ** rng.integers(-3, 70, COUNT)
        array[:4] = [math.nan, math.inf, -math.inf, -0.0]
        values = [Fraction(x) if math.isfinite(x) else x for x in array.tolist()]
    else:
        array = oracle.float_samples(source, COUNT, 7)
        values = [oracle.decode(bits, source) for bits in array.tolist()]
    for target in (f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64)):
        bits = int(target[1:])
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if target[0] == "s" else (0, (1 << bits) - 1)
        got = np.asarray(evaluate(f"cvt.{rounding}.{target}.{source}", array)).tolist()
        for value, whole in zip(values, got, strict=True):
            if isinstance(value, float) and math.isnan(value):
                top = -(1 << bits - 1) if target[0] == "s" else 1 << bits - 1
                want = top if source == "f64" or bits == 64 else 0
            elif isinstance(value, float) and math.isinf(value):
                want = high if value > 0 else low
            else:
                want = max(low, min(high, ROUND_TO_WHOLE[rounding](Fraction(value))))
            assert whole == want, (target, value)


@pytest.mark.parametrize("rounding", ROUND_TO_WHOLE)
def test_float_to_whole_float(rounding: str) -> None:
    bits = oracle.float_samples("f32", COUNT, 8)
    got = np.asarray(evaluate(f"cvt.{rounding}.f32.f32", bits.view(np.float32)))
    for value, whole in zip(bits.view(np.float32).tolist(), got.tolist(), strict=True):
        if math.isfinite(value):
            assert whole == ROUND_TO_WHOLE[rounding](Fraction(value))
            assert math.copysign(1, whole) == math.copysign(1, value)
        else:
            assert str(whole) == ("nan" if math.isnan(value) else str(value))


@pytest.mark.parametrize("source", [f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64)])
def test_integers(source: str) -> None:
    bits = int(source[1:])
    a = oracle.samples(bits, COUNT, 9)
    values = [oracle.signed(x, bits) if source[0] == "s" else x for x in a.tolist()]
    for target in (f"{sign}{width}" for sign in "us" for width in (8, 16, 32, 64)):
        width = int(target[1:])
        got = np.asarray(evaluate(f"cvt.{target}.{source}", a)).view(f"u{width // 8}")
        assert got.tolist() == [value % (1 << width) for value in values], target
        low, high = (-(1 << width - 1), (1 << width - 1) - 1) if target[0] == "s" else (0, (1 << width) - 1)
        got = np.asarray(evaluate(f"cvt.sat.{target}.{source}", a))
        assert got.tolist() == [max(low, min(high, value)) for value in values], target
    if bits < 64:
        for name in ("f32", "f16", "bf16"):
            for rounding in ("rn", "rz", "rm", "rp"):
                got = np.asarray(evaluate(f"cvt.{rounding}.{name}.{source}", a))
                want = [oracle.encode(Fraction(value) if value else 0.0, name, rounding) for value in values]
                assert got.view(f"u{got.dtype.itemsize}").tolist() == want, (name, rounding)
    assert np.asarray(evaluate(f"cvt.rn.f64.{source}", a)).tolist() == [float(value) for value in values]


def test_scales() -> None:
    """ue8m0: the exponent of a power of two, toward zero or up (OCP MX v1.0, section 5.4.1)."""
    values = np.abs(AS_F32)
    finite = np.isfinite(AS_F32)
    for rounding, choose in (("rz", math.floor), ("rp", math.ceil)):
        upper, lower = upper_and_lower(f"cvt.{rounding}.satfinite.ue8m0x2.f32", AS_F32, 8)
        assert (upper == lower).all()
        assert (upper[NAN] == 0xFF).all()
        assert (upper[np.isinf(AS_F32)] == 0xFE).all()
        for value, code in zip(values[finite].tolist()[::7], upper[finite].tolist()[::7], strict=True):
            # log2 is good enough: a bf16 that is no power of two differs from one by 1 part in 128 at least
            want = 0 if value == 0 else choose(math.log2(value)) + 127
            assert code == max(0, min(0xFE, want))


def test_what_is_not_a_conversion_is_unknown() -> None:
    a = np.zeros(4, np.float32)
    opcodes = (
        "cvt.bf16.f32", "cvt.rn.f32.bf16", "cvt.u32.f32", "cvt.rn.e4m3x2.f32", "cvt.rs.bf16x2.f32",
        "cvt.rna.tf32.f32", "cvt.rn.f32.u64", "cvt.rz.e4m3x2.f32", "cvt.rn.satfinite.e2m3x2.f32",
    )  # fmt: skip
    for opcode in opcodes:
        with pytest.raises(UnknownInstructionError):
            evaluate(opcode, a, a)
