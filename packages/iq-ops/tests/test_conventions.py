"""The arithmetic of the conventions: the default is the contract's reference, an FMA rounds once, the axes are real."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from iq_ops import _variants, reference
from iq_ops.conventions import AXES, ENGINES, FORMATS, QUESTIONS, Convention, choices


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize(("rope_style", "rope_at"), [("interleaved", "tail"), ("neox", "head"), ("neox", "tail")])
def test_the_default_convention_is_the_reference(make_dump, inputs, fmt, rope_style, rope_at, hadamard):
    options = {"rope_style": rope_style, "rope_at": rope_at}
    dump = make_dump(fmt, **options, hadamard="ascending" if hadamard else "none")
    weights_out = torch.full_like(dump.weights_out, 7.0)
    call = {**vars(inputs), "weights_out": weights_out, **options, "hadamard": hadamard}
    codes = torch.full_like(dump.codes, 0xA5)
    if fmt == "fp8":
        reference.indexer_q_fp8(**call, q_fp8=codes)
    else:
        scale = torch.full_like(dump.scale, 0xA5)
        reference.indexer_q_mxfp4(**call, q_packed=codes, q_scale=scale)
        assert torch.equal(scale, dump.scale)
    assert torch.equal(codes, dump.codes)
    assert torch.equal(weights_out.view(torch.int32), dump.weights_out.view(torch.int32))


def test_fma_rounds_once():
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(4000, generator=generator) for _ in range(2))
    z = torch.randn(4000, generator=generator) * 2.0 ** torch.randint(-40, 40, (4000,), generator=generator)
    x[:2], y[:2], z[:2] = 1 + 2.0**-23, 1 + 2.0**-23, 2.0**30  # the exact sum lies just off a tie of fp64, then of fp32
    z[2:1000] = -(x * y)[2:1000]  # leaves the rounding error of the product alone
    actual = _variants._fma(x, y, z)
    expected = [
        _nearest_fp32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))
        for a, b, c in zip(x, y, z, strict=True)
    ]
    assert [float(value) for value in actual] == expected


def _nearest_fp32(exact):
    """The fp32 nearest to a fraction, ties to even, by comparing with its neighbours."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return float(min(around, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.int32)) & 1)))


def test_axes_and_fields_are_the_same():
    names = [field.name for field in fields(Convention)]
    assert names == list(AXES) == list(QUESTIONS)
    assert all(getattr(Convention(), axis) == next(iter(AXES[axis])) for axis in AXES)


# What else must differ for a choice to show: a product with a power of two commutes with all others.
SETTING = {"transformed": {"hadamard": "ascending"}, "hadamard": {"hadamard": "none"}}
FP8_SETTING = {**SETTING, "weights": {"scale": "exact a/m v/s"}}
# Last bits that the rounding to bf16 hides in all but one of a million values.
HIDDEN = {"arithmetic": {name for name in AXES["arithmetic"] if name.startswith("fma")}, "hadamard": {"descending"}}


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_choice_changes_something(make_dump, inputs, fmt):
    odd = replace(inputs, weights_softmax_scale=0.1, weights_head_scale=0.9)
    for axis in AXES:
        setting = (FP8_SETTING if fmt == "fp8" else SETTING).get(axis, {})
        contract = make_dump(fmt, of=odd, **setting)
        for choice in choices(axis, fmt)[1:]:
            if choice not in HIDDEN.get(axis, ()):
                assert not same_bytes(make_dump(fmt, of=odd, **{**setting, axis: choice}), contract), (axis, choice)


def same_bytes(one, other):
    return all(
        x is None or torch.equal(x.view(torch.uint8), y.view(torch.uint8))
        for x, y in ((one.codes, other.codes), (one.scale, other.scale), (one.weights_out, other.weights_out))
    )


def test_engines_name_choices_that_exist():
    for engine in ENGINES:
        for axis, fits in engine.fits.items():
            for fmt in engine.formats:
                assert set(fits) & set(choices(axis, fmt)) or len(choices(axis, fmt)) == 1, (engine.name, axis)
            assert set(fits) <= set(AXES[axis]), (engine.name, axis)
