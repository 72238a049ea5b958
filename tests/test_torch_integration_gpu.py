"""Graphs, streams, devices and warmup on a GPU, with every kernel backend that is installed."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import cases
import iq_ops
from iq_ops import _abi

pytestmark = pytest.mark.gpu
quantize, quantize_out = iq_ops.fused_indexer_q_rope_quant, iq_ops.fused_indexer_q_rope_quant_out
KERNELS = sorted(entry.name for entry in importlib.metadata.entry_points(group=_abi.ENTRY_POINT_GROUP))
with_every_kernel = pytest.mark.parametrize("backend", KERNELS)
in_both_formats = pytest.mark.parametrize("fmt", cases.FORMATS)


def refill(case, seed):
    """Overwrite a case's inputs in place with those of another seed."""
    other = cases.random_case(
        seed, fmt=case.fmt, tokens=case.q.shape[0], num_heads=case.q.shape[1], device=case.q.device
    )
    for name in ("positions", "q", "cos_sin_cache", "weights"):
        getattr(case, name).copy_(getattr(other, name))


@with_every_kernel
@in_both_formats
def test_a_graph_replays_with_changed_inputs(backend, fmt):
    case = cases.random_case(1, fmt=fmt, tokens=64, num_heads=64, device="cuda")
    iq_ops.warmup(64, formats=(fmt,), backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = quantize(*case.positional, backend=backend)
    for seed in range(2, 6):
        refill(case, seed)
        for part in (result[1], *(result[0] if fmt == "mxfp4" else (result[0],))):
            part.view(torch.uint8).fill_(cases.POISON)
        graph.replay()
        torch.cuda.synchronize()
        cases.check_result(case, result)


COLD = """
import sys, torch, cases, iq_ops
backend = sys.argv[1]
case = cases.random_case(1, tokens=64, num_heads=64, device="cuda")
torch.cuda.synchronize()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        iq_ops.fused_indexer_q_rope_quant(*case.positional, backend=backend)
    print("captured")
except RuntimeError as error:
    print("refused", error)
iq_ops.warmup(64, backend=backend)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = iq_ops.fused_indexer_q_rope_quant(*case.positional, backend=backend)
graph.replay()
cases.check_result(case, result)
print("captured after warmup")
"""


@with_every_kernel
def test_a_cold_call_under_capture_names_warmup_and_the_capture_can_be_tried_again(backend, tmp_path, monkeypatch):
    monkeypatch.setenv("IQ_KERNELS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", COLD, backend], capture_output=True, text=True, cwd=cases.GOLDEN.parent
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("refused")
    assert "iq_ops.warmup" in done.stdout
    assert rest[-1] == "captured after warmup"


@with_every_kernel
@in_both_formats
def test_nothing_compiles_after_warmup_at_any_length_or_layout(backend, fmt):
    iq_ops.warmup(64, formats=(fmt,), backend=backend)
    compiled = iq_ops.compile_count()
    for tokens in (0, 1, 2, 3, 7, 8, 16, 31, 32, 33, 64, 100, 128, 255, 256, 511, 512, 513, 1024, 4096, 20_000, 65_536):
        case = cases.random_case(tokens, fmt=fmt, tokens=tokens, num_heads=64, device="cuda", edges=False)
        quantize(*case.positional, backend=backend)
        if 0 < tokens < 1000:
            strided = cases.random_case(tokens, fmt=fmt, tokens=tokens, num_heads=64, layout="slice", device="cuda")
            plain = replace(strided, weights=strided.weights.contiguous(), positions=strided.positions.contiguous())
            quantize(*plain.positional, backend=backend)
    assert iq_ops.compile_count() == compiled


@with_every_kernel
@in_both_formats
@pytest.mark.filterwarnings("default")  # the compiler's own warnings are not ours to mend
def test_reduce_overhead(backend, fmt):
    case = cases.random_case(2, fmt=fmt, tokens=33, num_heads=32, device="cuda")
    compiled = torch.compile(quantize, mode="reduce-overhead", fullgraph=True)
    for seed in range(3, 8):
        refill(case, seed)
        cases.check_result(case, compiled(*case.positional, backend=backend))


@with_every_kernel
def test_a_side_stream_sees_what_it_wrote(backend):
    case = cases.random_case(3, tokens=256, num_heads=64, device="cuda")
    expected = cases.reference(case)
    slow = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    source, stream = case.q.clone(), torch.cuda.Stream()
    torch.cuda.synchronize()  # the other stream does not wait for what makes its inputs
    for repeat in range(50):
        with torch.cuda.stream(stream):
            case.q.zero_()
            for _ in range(4):
                slow = slow @ slow * 1e-3
            case.q.copy_(source)
            result = quantize(*case.positional, backend=backend)
        stream.synchronize()
        cases.assert_same(cases.raw_outputs(case, result), expected, repeat)


@with_every_kernel
@in_both_formats
def test_tensors_of_another_gpu_than_the_current_one(backend, fmt):
    last = torch.device("cuda", torch.cuda.device_count() - 1)
    with torch.cuda.device(0):
        case = cases.random_case(4, fmt=fmt, tokens=100, num_heads=64, device=last)
        torch.cuda.synchronize(last)  # a fault before this line is none of the kernels'
        result = quantize(*case.positional, backend=backend)
        torch.cuda.synchronize(last)
        assert torch.cuda.current_device() == 0
    assert result[1].device == last
    cases.check_result(case, result)


@with_every_kernel
def test_a_device_mix_is_named(backend):
    case = cases.random_case(5, device="cuda")
    with pytest.raises(ValueError, match="index_q: expected device cpu, where positions is"):
        quantize(case.positions.cpu(), *case.positional[1:], backend=backend)


@with_every_kernel
def test_overlapping_memory_is_refused_on_the_gpu(backend):
    case = cases.random_case(6, tokens=64, num_heads=64, device="cuda")
    inside = case.q.view(torch.uint8).flatten()[: case.q.numel()].view(case.q.shape)
    with pytest.raises(ValueError, match="q_out: expected memory of its own, apart from index_q"):
        quantize_out(*case.positional, q_out=inside, weights_out=torch.empty(64, 64, device="cuda"), backend=backend)


@in_both_formats
@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_every_layout_goes_through_the_public_function(fmt, layout):
    """Whatever one kernel refuses, another takes: no layout of the contract ends at the reference."""
    case = cases.random_case(7, fmt=fmt, tokens=65, num_heads=64, layout=layout, device="cuda")
    assert iq_ops.explain(*case.positional).backend in KERNELS
    cases.check_result(case, quantize(*case.positional))


def test_debug_mode_synchronises_once_and_stays_out_of_graphs():
    from iq_ops import _debug

    case = cases.random_case(8, tokens=64, device="cuda", edges=False)
    _debug.check_values(case.positions, case.q, case.cos_sin_cache, case.weights)
    case.q[40, 1, 2] = torch.nan
    with pytest.raises(ValueError, match="q: expected finite values, got nan at token 40, head 1, dim 2"):
        _debug.check_values(case.positions, case.q, case.cos_sin_cache, case.weights)
