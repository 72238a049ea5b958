"""Arguments that are almost right: scales that are no floats, tensors without strides or memory, inference buffers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import cases
import iq_ops
from fake_providers import planting  # noqa: F401 - an autouse fixture
from iq_ops import reference

quantize = iq_ops.fused_indexer_q_rope_quant
CASE = cases.random_case(5, tokens=6, num_heads=4)
WRONG_SCALES = {"none": None, "str": "0.5", "complex": 1j, "list": [0.5], "huge": 10**400, "tensor": torch.ones(2)}


@pytest.mark.parametrize("wrong", WRONG_SCALES)
@pytest.mark.parametrize("name", ["index_weights_softmax_scale", "index_weights_head_scale"])
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_a_wrong_scale_is_named(name, wrong, fmt):
    case = cases.random_case(5, fmt=fmt)
    arguments = list(case.positional)
    arguments[4 if name == "index_weights_softmax_scale" else 5] = WRONG_SCALES[wrong]
    with pytest.raises(TypeError, match=rf"{name}: expected a Python float, got .*Remedy: "):
        quantize(*arguments)


def test_a_numpy_scale_is_multiplied_in_binary64():
    case = cases.random_case(5)
    arguments = {
        "positions": case.positions, "q": case.q, "cos_sin_cache": case.cos_sin_cache, "weights": case.weights,
    }  # fmt: skip
    found = {}
    for kind in (float, np.float32):
        out = torch.empty(case.q.shape, dtype=torch.uint8), torch.full(case.weights.shape, 7.0)
        scales = {"weights_softmax_scale": kind(np.float32(0.7)), "weights_head_scale": 0.3}
        reference.indexer_q_fp8(**arguments, **scales, q_fp8=out[0], weights_out=out[1])
        found[kind] = out[1]
    assert np.float32(0.7) * 0.3 != np.float32(float(np.float32(0.7)) * 0.3)  # else the two ways cannot differ
    assert torch.equal(found[float].view(torch.int32), found[np.float32].view(torch.int32))


ODD_TENSORS = {
    "sparse": (lambda: CASE.weights.float().to_sparse(), "layout torch.sparse_coo"),
    "nested": (lambda: torch.nested.nested_tensor(list(CASE.weights), layout=torch.jagged), "a nested tensor"),
}


@pytest.mark.parametrize("what", ODD_TENSORS)
def test_a_tensor_without_strides_is_named(what):
    make, actual = ODD_TENSORS[what]
    with pytest.raises(ValueError, match=rf"index_weights: expected a dense tensor, got {actual}\. Remedy"):
        quantize(*replace(CASE, weights=make()).positional)


def test_vmap_is_refused_under_the_argument_that_it_wraps():
    positions, q, *rest = CASE.positional
    with pytest.raises(ValueError, match=r"index_q: expected a tensor with memory, .*as torch\.func\.vmap makes"):
        torch.func.vmap(lambda one: quantize(positions, one, *rest))(torch.stack([q, q]))


@pytest.fixture
def flushing():
    """Subnormals are zero in this thread, until the test ends."""
    assert torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_the_reference_refuses_a_cpu_that_flushes_subnormals(fmt, flushing):
    case = cases.random_case(5, fmt=fmt, weights_dtype=torch.float32, edges=False)
    case = replace(case, weights=torch.full_like(case.weights, 2.0**-126), softmax_scale=0.5, head_scale=1.0)
    outputs = cases.poisoned_outputs(case, 0)
    for call in (lambda: quantize(*case.positional), lambda: getattr(reference, case.op)(**case.inputs, **outputs)):
        with pytest.raises(RuntimeError, match=r"Remedy: call torch.set_flush_denormal\(False\)"):
            call()
    assert all(bool((buffer.view(torch.uint8) == cases.POISON).all()) for buffer in outputs.values())
    torch.set_flush_denormal(False)
    weights_out = cases.raw_outputs(case, quantize(*case.positional))["weights_out"]
    assert bool((weights_out[case.positions >= 0] > 0).all())


@pytest.mark.parametrize("name", ["positions", "q", "cos_sin_cache", "weights", "weights_out"])
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_the_reference_minds_the_sign_of_a_lazily_negated_view(name, fmt):
    case = cases.random_case(5, fmt=fmt, weights_dtype=torch.float32, edges=False)
    expected, outputs = cases.reference(case), cases.poisoned_outputs(case, 0)
    arguments = {**case.inputs, **outputs}
    arguments[name] = torch._neg_view(-arguments[name])
    assert arguments[name].is_neg()
    getattr(reference, case.op)(**arguments)
    cases.assert_same({key: arguments[key].resolve_neg() for key in outputs}, expected)


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_buffers_made_in_inference_mode_are_written_outside_it(fmt):
    case = cases.random_case(5, fmt=fmt)
    with torch.inference_mode():
        buffers = cases.poisoned_outputs(case, 0)
    names = {"q_fp8": "q_out", "q_packed": "q_out", "q_scale": "q_scale_out"}
    iq_ops.fused_indexer_q_rope_quant_out(
        *case.positional, **{names.get(name, name): buffer for name, buffer in buffers.items()}
    )
    cases.assert_same(buffers, cases.raw_outputs(case, quantize(*case.positional)))
