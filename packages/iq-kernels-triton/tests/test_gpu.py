"""Compiled kernels on a GPU: hardware against integer arithmetic, warmup, CUDA graphs, streams."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import cases
import iq_kernels_triton
from iq_kernels_triton import _abi, provider
from iq_kernels_triton.indexer_q import compiling, config, launch

pytestmark = pytest.mark.gpu


def raw(case):
    return getattr(iq_kernels_triton, case.op)


def workload_of(case):
    return _abi.Workload(**case.workload_fields(launch.target_of(case.q.device), case.q.device.index))


@pytest.fixture(name="cold")
def make_cold(monkeypatch):
    """A process that has compiled nothing."""
    monkeypatch.setattr(compiling, "_loaded", {})
    monkeypatch.setattr(launch, "_plans", {})


@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("tokens", [33, 1023])
def test_integer_and_hardware_arithmetic_agree_on_every_bit_pattern(monkeypatch, fmt, hadamard, tokens):
    case = cases.random_case(3, fmt=fmt, tokens=tokens, num_heads=64, hadamard=hadamard, device="cuda")
    generator = torch.Generator("cuda").manual_seed(4)
    patterns = torch.randint(-(2**15), 2**15, case.q.shape, generator=generator, device="cuda", dtype=torch.int16)
    case.q[tokens // 2 :] = patterns[tokens // 2 :].view(torch.bfloat16)
    hardware = cases.run(raw(case), case)
    monkeypatch.setattr(config, "MIN_SM", 1000)
    monkeypatch.setattr(config, "FP8_SM", 1000)
    monkeypatch.setattr(launch, "_plans", {})
    before = provider.compile_count()
    cases.assert_same(cases.run(raw(case), case), hardware)
    assert provider.compile_count() == before + 1, "the integer variant is one of its own"


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_after_warmup_no_length_and_no_layout_compiles(cold, fmt):
    case = cases.random_case(5, fmt=fmt, tokens=3, num_heads=8, device="cuda")
    for _, job in provider.warmup_jobs(workload_of(case)):
        job()
    warmed = provider.compile_count()
    assert warmed == len(provider.warmup_jobs(workload_of(case)))
    for tokens in (0, 1, 7, 600, 5000):
        for layout in cases.LAYOUTS:
            laid_out = cases.random_case(5, fmt=fmt, tokens=tokens, num_heads=8, layout=layout, device="cuda")
            cases.run(raw(laid_out), laid_out)
    assert provider.compile_count() == warmed


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_a_cold_call_under_capture_is_refused_and_a_warm_one_is_recorded(cold, fmt):
    case = cases.random_case(6, fmt=fmt, tokens=9, num_heads=8, device="cuda")
    outputs = cases.poisoned_outputs(case, 0)
    with warnings.catch_warnings(), torch.cuda.graph(torch.cuda.CUDAGraph()):
        warnings.simplefilter("ignore")  # PyTorch warns that nothing was captured, which is the point
        with pytest.raises(RuntimeError, match=r"iq_ops\.warmup"):
            raw(case)(**case.inputs, **outputs)
    assert provider.compile_count() == 0
    for _, job in provider.warmup_jobs(workload_of(case)):
        job()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        raw(case)(**case.inputs, **outputs)
    torch.cuda.synchronize()
    assert all(bool((buffer.view(torch.uint8) == cases.POISON).all()) for buffer in outputs.values())
    graph.replay()
    torch.cuda.synchronize()
    cases.assert_same(outputs, cases.run(raw(case), case))


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_a_chain_of_dependent_launches_sees_what_came_before(fmt):
    """Each launch reads a q that a kernel just before it wrote, and its outputs are read just after."""
    case = cases.random_case(7, fmt=fmt, tokens=300, num_heads=64, device="cuda")
    expected = cases.run(raw(case), case)
    q = torch.empty_like(case.q)
    for _ in range(50):
        q.fill_(1.0)
        q.copy_(case.q)
        cases.assert_same(cases.run(raw(case), replace(case, q=q)), expected)


def test_the_current_stream_is_used():
    case = cases.random_case(8, tokens=64, num_heads=64, device="cuda")
    expected = cases.run(raw(case), case)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)  # half a second: the host may be busy with other tests
        outputs = cases.poisoned_outputs(case, 0)
        raw(case)(**case.inputs, **outputs)
        finished = stream.query()
    stream.synchronize()
    assert not finished, "the kernel waits behind the sleep of its stream"
    cases.assert_same(outputs, expected)
