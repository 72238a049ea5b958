"""The device code of scales and encodings, run on numpy over every bf16, against the contract's own formulas."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy_ptx
import pytest

from iq_kernels_cute import _abi
from iq_kernels_cute.indexer_q import config, encode, scale

FLOOR = {"indexer_q_fp8": 1e-4, "indexer_q_mxfp4": 6 * 2.0**-126}
RECIPROCAL = {"indexer_q_fp8": 1 / 448, "indexer_q_mxfp4": 1 / 6}
EVERY_BF16 = np.arange(1 << 16, dtype=np.uint32)
MAGNITUDES = np.arange(0x7F80, dtype=np.uint32)
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")


@pytest.fixture(autouse=True)
def on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (encode, scale):
        monkeypatch.setattr(module, "ptx", numpy_ptx)


def variant(make_workload, op: str, arch: str) -> config.Variant:
    return dataclasses.replace(config.choose(make_workload(op=op, target=arch), 1, dense=True), arch=arch)


def widen(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def contract_exponent(op: str, amax: np.ndarray) -> np.ndarray:
    """Step 5 of the contract, in fp32: (bits(max(amax, FLOOR) * RECIP) + 0x7FFFFF) >> 23."""
    ratio = np.maximum(widen(amax), np.float32(FLOOR[op])) * np.float32(RECIPROCAL[op])
    return (ratio.view(np.uint32) + np.uint32(0x7FFFFF)) >> np.uint32(23)


def exponents(v: config.Variant, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, ...]:
    """What the device code makes of pairs of amax: words of exponents, of inverses, of poison bits."""
    amax = scale._over_lanes(v, low | high << np.uint32(16), 1)
    return scale._exponents(v, amax)


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_exponent_of_every_amax(make_workload, op: str, arch: str):
    v = variant(make_workload, op, arch)
    expected = contract_exponent(op, MAGNITUDES)
    found, inverses, poison = exponents(v, MAGNITUDES, MAGNITUDES[::-1])
    for bits, want in ((found & 0xFFFF, expected), (found >> 16, expected[::-1])):
        np.testing.assert_array_equal(bits, want)
    np.testing.assert_array_equal(inverses & 0xFFFF, (254 - expected) << 7)
    np.testing.assert_array_equal(inverses >> 16, (254 - expected[::-1]) << 7)
    assert not (poison & 0x80008000).any()


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("poison_low", [False, True])
def test_poison_stays_in_its_half(make_workload, op: str, poison_low: bool):
    v = variant(make_workload, op, "sm_90a")
    healthy = MAGNITUDES[:: len(MAGNITUDES) // 200]
    for poisoned in range(0x7F80, 0x8000):
        bad = np.full_like(healthy, poisoned)
        found, inverses, poison = exponents(v, *((bad, healthy) if poison_low else (healthy, bad)))
        good_shift, bad_bit = (16, 0x8000) if poison_low else (0, 0x80000000)
        np.testing.assert_array_equal(found >> good_shift & 0xFFFF, contract_exponent(op, healthy))
        np.testing.assert_array_equal(inverses >> good_shift & 0xFFFF, (254 - contract_exponent(op, healthy)) << 7)
        assert (poison & 0x80008000 == bad_bit).all()


def pairs_for(exponent: int, top_bits: np.ndarray) -> list[np.ndarray]:
    """Sixteen-element vectors, as eight words, that hold every bf16 whose magnitude this exponent's scale allows."""
    values = np.concatenate([top_bits, top_bits | np.uint32(0x8000)])
    values = np.resize(values, -(-len(values) // 16) * 16).reshape(-1, 16)
    return [values[:, i] | values[:, i + 1] << np.uint32(16) for i in range(0, 16, 2)]


def unpacked(pairs: list[np.ndarray]) -> np.ndarray:
    """The values of the words of pairs, one column an element."""
    return np.stack([widen(half) for pair in pairs for half in (pair & 0xFFFF, pair >> 16)], axis=1).astype(np.float64)


def scale_of(exponent: int) -> scale.Scale:
    inverse = np.uint32((254 - exponent) << 7)
    return scale.Scale(np.uint32(exponent), inverse | inverse << np.uint32(16), np.uint32(0))


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_code_of_every_bf16_at_every_exponent(make_workload, op: str, arch: str):
    v = variant(make_workload, op, arch)
    by_exponent = contract_exponent(op, MAGNITUDES)
    bits = 8 if op == "indexer_q_fp8" else 4
    oracle = numpy_ptx.e4m3 if bits == 8 else numpy_ptx.e2m1
    for exponent in np.unique(by_exponent):
        allowed = MAGNITUDES[by_exponent <= exponent]
        if (
            exponent % 16
        ):  # far below, only the sign is left: a few of those are enough, and all where the floor is near
            allowed = allowed[np.r_[: len(allowed) : 97, max(0, len(allowed) - 0x900) : len(allowed)]]
        pairs = pairs_for(exponent, allowed)
        expected = oracle((unpacked(pairs) * 2.0 ** (127 - float(exponent))).astype(np.float32))
        found = encode.encode(v, pairs, scale_of(exponent))
        codes = np.stack(
            [word >> np.uint32(shift) & np.uint32((1 << bits) - 1) for word in found for shift in range(0, 32, bits)],
            axis=1,
        )
        np.testing.assert_array_equal(codes, expected, err_msg=f"exponent {exponent}")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_vectors_of_four_give_the_same_codes(make_workload, arch: str):
    v = variant(make_workload, "indexer_q_mxfp4", arch)
    pairs = pairs_for(127, MAGNITUDES[contract_exponent("indexer_q_mxfp4", MAGNITUDES) <= 127])
    whole = encode.encode(v, pairs, scale_of(127))
    for i in range(0, 8, 2):
        (four,) = encode.encode(v, pairs[i : i + 2], scale_of(127))
        np.testing.assert_array_equal(four & 0xFFFF, whole[i // 4] >> np.uint32(8 * (i % 4)) & 0xFFFF)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_poisoned_fp8_row_is_all_nan(make_workload, arch: str):
    v = variant(make_workload, "indexer_q_fp8", arch)
    poisoned = dataclasses.replace(scale_of(127), poison=np.uint32(0xFFFFFFFF))
    for inverse in (0, 0x3F803F80, 0xFF80FF80):
        found = encode.encode(
            v, pairs_for(127, EVERY_BF16[:0x8000]), dataclasses.replace(poisoned, inverse=np.uint32(inverse))
        )
        for word in found:
            assert (word == 0x7F7F7F7F).all()
