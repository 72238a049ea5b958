"""Plain eager calls of a known signature: new memory each, as the first call of it, and judged no more."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import cases
import iq_ops
from fake_providers import planting, preferring, providing  # noqa: F401 - fixtures
from iq_ops import _abi, reference

quantize = iq_ops.fused_indexer_q_rope_quant
on_every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
in_both_formats = pytest.mark.parametrize("fmt", cases.FORMATS)
SIZES = [{}, {"head_dim": 64}, {"tokens": 1}, {"tokens": 0}, {"num_heads": 1, "weights_out_dtype": torch.bfloat16}]


def tensors_of(result):
    quantized, weights_out = result
    return [*(quantized if isinstance(quantized, tuple) else (quantized,)), weights_out]


def check(case, result):
    cases.assert_same(cases.raw_outputs(case, result), cases.reference(case))


@on_every_device
@in_both_formats
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_call_returns_contiguous_tensors_that_own_their_memory(sizes, fmt, device):
    case = cases.random_case(1, fmt=fmt, device=device, **sizes)
    results = [quantize(*case.positional) for _ in range(3)]
    addresses = set()
    for result in results:
        check(case, result)
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
        check(case, result)
        assert all(tensor.is_inference() is (mode is torch.inference_mode) for tensor in tensors_of(result))


@in_both_formats
def test_deterministic_algorithms_change_no_byte(fmt):
    case = cases.random_case(3, fmt=fmt)
    torch.use_deterministic_algorithms(True)  # which fills new memory, and what resize_ adds to it
    try:
        for _ in range(2):
            check(case, quantize(*case.positional))
    finally:
        torch.use_deterministic_algorithms(False)


@in_both_formats
def test_a_bound_signature_gets_the_bytes_of_what_is_returned(fmt, plant, fake_provider, prefer_kernels):
    provider = fake_provider("triton")
    judged, written = [], []
    provider.why_not = lambda request: judged.append(request)
    case = cases.random_case(4, fmt=fmt, tokens=4)
    specs = _abi.OPS[case.op].tensors

    def run(*values):
        names = [spec.name for spec in specs]
        named = dict(zip([*names[:4], *_abi.SCALARS, *names[4:]], values, strict=True))
        getattr(reference, case.op)(**named, **case.options)
        written.append([named[spec.name] for spec in specs if spec.output])

    provider.bind = lambda request: run
    plant(provider)
    for _ in range(3):
        result = quantize(*case.positional)
        check(case, result)
        if written:
            assert [(tensor.shape, tensor.dtype) for tensor in written[-1]] == list(case.output_shapes().values())
            assert [t.data_ptr() for t in written[-1]] == [t.data_ptr() for t in tensors_of(result)]
    assert (len(judged), len(provider.calls), len(written)) == (1, 1, 2)


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
    check(case, quantize(*case.positional))


def test_new_lengths_on_the_cpu_leave_no_holes_in_the_heap():
    code = """
import torch, iq_ops
q, cache = torch.zeros(2000, 1, 128, dtype=torch.bfloat16), torch.ones(4, 64)
def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20
for tokens in range(1, 2001):
    inputs = torch.zeros(tokens, dtype=torch.int64), q[:tokens], cache, q[:tokens, :, 0]
    iq_ops.fused_indexer_q_rope_quant(*inputs, 1.0, 1.0)
    if tokens == 200:
        before = megabytes()
print(megabytes() - before)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(said) < 200, "1.2 GB with tensors kept for each length"
