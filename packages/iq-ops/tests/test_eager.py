"""Plain eager calls of a known signature: new memory each, as the first call of it, and judged no more."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import cases
import iq_ops
from fake_providers import planting, preferring, providing  # noqa: F401 - fixtures
from iq_ops import _abi, reference

quantize = iq_ops.fused_indexer_q_rope_quant
in_both_formats = pytest.mark.parametrize("fmt", cases.FORMATS)


def tensors_of(result):
    quantized, weights_out = result
    return [*(quantized if isinstance(quantized, tuple) else (quantized,)), weights_out]


@in_both_formats
def test_deterministic_algorithms_change_no_byte(fmt):
    case = cases.random_case(3, fmt=fmt)
    torch.use_deterministic_algorithms(True)  # which fills new memory, and what resize_ adds to it
    try:
        for _ in range(2):
            cases.check_result(case, quantize(*case.positional))
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
        cases.check_result(case, result)
        if written:
            assert [(tensor.shape, tensor.dtype) for tensor in written[-1]] == list(case.output_shapes().values())
            assert [t.data_ptr() for t in written[-1]] == [t.data_ptr() for t in tensors_of(result)]
    assert (len(judged), len(provider.calls), len(written)) == (1, 1, 2)


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
