"""Errors of a raw call: argument, expected, actual, remedy, before anything is launched or compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import cases
import iq_kernels_triton
from iq_kernels_triton import provider


def call(case, **changes):
    outputs = cases.poisoned_outputs(case, 0)
    before = provider.compile_count()
    try:
        getattr(iq_kernels_triton, case.op)(**{**case.inputs, **outputs, **changes})
    finally:
        assert provider.compile_count() == before
        assert all(bool((buffer.view(torch.uint8) == cases.POISON).all()) for buffer in outputs.values())


@pytest.fixture(name="case", params=cases.FORMATS)
def make_case(request):
    return cases.random_case(1, fmt=request.param, tokens=4, num_heads=2)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rope_style": "gptj"}, ValueError, r"rope_style: expected 'interleaved' or 'neox', got 'gptj'"),
        ({"rope_style": ["neox"]}, ValueError, r"rope_style: expected .*Remedy"),
        ({"rope_at": "middle"}, ValueError, r"rope_at: expected 'tail' or 'head', got 'middle'"),
        ({"hadamard": 1}, TypeError, r"hadamard: expected True or False, got 1"),
        ({"q": None}, TypeError, r"q: expected a torch.Tensor, got NoneType"),
        ({"q": torch.zeros(4, 2, 128)}, TypeError, r"q: expected dtype torch.bfloat16, got torch.float32"),
        ({"q": torch.zeros(4, 256, dtype=torch.bfloat16)}, ValueError, r"q: expected rank 3"),
        ({"q": torch.zeros(4, 128, 2, dtype=torch.bfloat16).mT}, ValueError, r"q: expected stride\(-1\) == 1"),
        ({"q": torch.zeros(4, 2, 96, dtype=torch.bfloat16)}, ValueError, r"expected a head dim of|shape"),
        ({"positions": torch.zeros(3, dtype=torch.int64)}, ValueError, r"q: expected size T = 3"),
        ({"weights": torch.zeros(4, 3)}, ValueError, r"weights: expected size H = 2"),
        ({"cos_sin_cache": torch.zeros(8, 24)}, ValueError, r"cos_sin_cache.shape\[1\]: expected a rotary dim"),
        (
            {"q": torch._neg_view(torch.zeros(4, 2, 128, dtype=torch.bfloat16))},
            ValueError,
            r"q: .*: pass q.resolve_neg\(",
        ),
        ({"cos_sin_cache": torch._neg_view(torch.zeros(8, 64))}, ValueError, r"cos_sin_cache.resolve_neg\(\)"),
        ({"weights": torch.zeros(4, 2, dtype=torch.complex64).conj().imag}, ValueError, r"weights.resolve_neg\(\)"),
        (
            {"weights_out": torch._neg_view(torch.zeros(4, 2))},
            ValueError,
            r"weights_out: .* negated. Remedy: pass a buf",
        ),
        ({"weights_out": torch.zeros(4, 2, dtype=torch.float16)}, TypeError, r"weights_out: expected dtype"),
    ],
)
def test_a_wrong_argument_is_named(case, changes, error, message):
    with pytest.raises(error, match=message):
        call(case, **changes)


def test_a_float8_output_is_told_to_view_bytes():
    case = cases.random_case(1, tokens=4, num_heads=2)
    with pytest.raises(TypeError, match=r"q_fp8.view\(torch.uint8\)"):
        call(case, q_fp8=torch.zeros(4, 2, 128, dtype=torch.float8_e4m3fn))


def test_an_output_that_is_not_contiguous_is_refused():
    case = cases.random_case(1, tokens=4, num_heads=2)
    with pytest.raises(ValueError, match=r"q_fp8: expected a contiguous tensor"):
        call(case, q_fp8=torch.zeros(4, 2, 256, dtype=torch.uint8)[..., :128])


def test_a_cpu_tensor_is_refused_where_kernels_are_compiled(case):
    with pytest.raises(ValueError, match=r"q: expected a tensor on a cuda device, got device cpu. Remedy: .*INTERPRET"):
        call(case)


def test_a_mistake_is_found_again_in_a_second_call(case):
    for _ in range(2):
        with pytest.raises(ValueError, match="rope_at"):
            call(replace(case, options={**case.options, "rope_at": "nowhere"}))
