"""Plain eager calls on the real backends: new memory each, the same bytes from the first call of a signature on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import cases
import iq_ops

quantize = iq_ops.fused_indexer_q_rope_quant
on_every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
in_both_formats = pytest.mark.parametrize("fmt", cases.FORMATS)
SIZES = [{}, {"head_dim": 64}, {"tokens": 1}, {"tokens": 0}, {"num_heads": 1, "weights_out_dtype": torch.bfloat16}]


def tensors_of(result):
    quantized, weights_out = result
    return [*(quantized if isinstance(quantized, tuple) else (quantized,)), weights_out]


@on_every_device
@in_both_formats
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_call_returns_contiguous_tensors_that_own_their_memory(sizes, fmt, device):
    case = cases.random_case(1, fmt=fmt, device=device, **sizes)
    results = [quantize(*case.positional) for _ in range(3)]
    addresses = set()
    for result in results:
        cases.check_result(case, result)
        for tensor, like in zip(tensors_of(result), tensors_of(results[0]), strict=True):
            assert (tensor.shape, tensor.dtype, tensor.device) == (like.shape, like.dtype, case.q.device)
            assert tensor.is_contiguous()
            assert not tensor._is_view()
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
            addresses.add(tensor.data_ptr())
    assert len(addresses) == sum(map(len, map(tensors_of, results))) or not case.q.numel()


@on_every_device
@in_both_formats
@pytest.mark.parametrize("first", [torch.inference_mode, torch.enable_grad])
def test_what_was_learned_in_one_mode_serves_in_another(first, fmt, device):
    case = cases.random_case(2, fmt=fmt, device=device)
    iq_ops._library.forget_signatures()
    for mode in (first, torch.inference_mode, torch.enable_grad):
        with mode():
            result = quantize(*case.positional)
        cases.check_result(case, result)
        assert all(tensor.is_inference() is (mode is torch.inference_mode) for tensor in tensors_of(result))


@on_every_device
@in_both_formats
@pytest.mark.parametrize("name", ["positions", "weights"])
def test_a_wrong_size_with_the_strides_of_a_known_signature_is_named(name, fmt, device):
    case = cases.random_case(5, fmt=fmt, device=device, tokens=6)
    quantize(*case.positional)
    given = getattr(case, name)
    wrong = replace(case, **{name: given[:5] if name == "positions" else given[:, :5]})
    said = {"positions": "index_q: expected size T = 5", "weights": "index_weights: expected size H = 8"}[name]
    with pytest.raises(ValueError, match=said):
        quantize(*wrong.positional)
    cases.check_result(case, quantize(*case.positional))
