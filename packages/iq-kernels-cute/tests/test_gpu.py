"""Compiled kernels on a GPU: variants agree, warmup covers every call, CUDA graphs, streams, devices, PDL chains."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from pathlib import Path

import pytest
import torch

import cases
import iq_kernels_cute
from iq_kernels_cute import _abi, cache, provider
from iq_kernels_cute.indexer_q import config, launch

pytestmark = pytest.mark.gpu


def raw(case):
    return getattr(iq_kernels_cute, case.op)


def workload_of(case) -> _abi.Workload:
    device_index = case.q.get_device()
    return _abi.Workload(**case.workload_fields(launch.target_of(device_index), device_index))


@pytest.fixture
def nothing_loaded(cold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has compiled and launched nothing, with an empty disk cache."""
    monkeypatch.setattr(launch, "_loaded", {})
    monkeypatch.setattr(launch, "_schedules", {})


@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("tokens", [1, 31, 513])
def test_every_variant_gives_the_same_bytes(fmt, hadamard, tokens, monkeypatch):
    case = cases.random_case(3, fmt=fmt, tokens=tokens, num_heads=64, hadamard=hadamard, device="cuda")
    expected = cases.run(raw(case), case)
    for variant in config.variants(workload_of(case)):
        monkeypatch.setattr(launch, "_loaded", {})
        monkeypatch.setattr(launch, "_schedules", {})
        monkeypatch.setattr(config, "schedule", lambda workload, dense, only=variant: [(config.MAX_ROWS, only)])
        cases.assert_same(cases.run(raw(case), case), expected)


@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("hadamard", [False, True])
def test_hardware_and_packed_conversions_agree_on_every_bit_pattern(nothing_loaded, monkeypatch, fmt, hadamard):
    case = cases.random_case(3, fmt=fmt, tokens=1023, num_heads=64, hadamard=hadamard, device="cuda")
    generator = torch.Generator("cuda").manual_seed(4)
    patterns = torch.randint(-(2**15), 2**15, case.q.shape, generator=generator, device="cuda", dtype=torch.int16)
    case.q[512:] = patterns[512:].view(torch.bfloat16)
    hardware = cases.run(raw(case), case)
    monkeypatch.setenv("IQ_KERNELS_CACHE", "0")
    for memory in (cache._kernels, launch._loaded, launch._schedules):
        memory.clear()
    monkeypatch.setattr(config.Variant, "hardware_e4m3", False)
    monkeypatch.setattr(config.Variant, "hardware_e2m1", False)
    cases.assert_same(cases.run(raw(case), case), hardware)


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_after_warmup_no_length_and_no_layout_compiles(nothing_loaded, fmt):
    case = cases.random_case(5, fmt=fmt, tokens=3, num_heads=8, device="cuda")
    before = provider.compile_count()
    jobs = provider.warmup_jobs(workload_of(case))
    for _, job in jobs:
        job()
    warmed = provider.compile_count()
    assert warmed == before + len(jobs)
    taken = 0
    for tokens in (0, 1, 7, 600, 5000, 65_536):
        for layout in cases.LAYOUTS:
            laid_out = cases.random_case(5, fmt=fmt, tokens=tokens, num_heads=8, layout=layout, device="cuda")
            with contextlib.suppress(ValueError):  # not 16-byte aligned: another backend's
                cases.run(raw(laid_out), laid_out)
                taken += 1
    assert taken >= 12
    assert provider.compile_count() == warmed


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_a_cold_call_under_capture_is_refused_and_a_warm_one_is_recorded(nothing_loaded, fmt):
    case = cases.random_case(6, fmt=fmt, tokens=9, num_heads=8, device="cuda")
    outputs = cases.poisoned_outputs(case, 0)
    before = provider.compile_count()
    with warnings.catch_warnings(), torch.cuda.graph(torch.cuda.CUDAGraph()):
        warnings.simplefilter("ignore")  # PyTorch warns that nothing was captured, which is the point
        with pytest.raises(RuntimeError, match=r"iq_ops\.warmup"):
            raw(case)(**case.inputs, **outputs)
    assert provider.compile_count() == before
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
@pytest.mark.parametrize("tokens", [1, 300, 4096])
def test_a_chain_of_dependent_launches_sees_what_came_before(fmt, tokens):
    """Each launch reads a q that a kernel just before it wrote, and its outputs are read just after."""
    case = cases.random_case(7, fmt=fmt, tokens=tokens, num_heads=64, device="cuda")
    expected = cases.run(raw(case), case)
    q = torch.empty_like(case.q)
    for _ in range(50):
        q.fill_(1.0)
        q.copy_(case.q)
        cases.assert_same(cases.run(raw(case), dataclasses.replace(case, q=q)), expected)


def test_back_to_back_launches_write_in_order():
    """A kernel may start before the one before it has ended: the later one's outputs must win all the same."""
    first = cases.random_case(8, tokens=512, num_heads=64, device="cuda")
    second = cases.random_case(9, tokens=512, num_heads=64, device="cuda")
    expected = cases.run(raw(second), second)
    for _ in range(50):
        outputs = cases.poisoned_outputs(second, 0)
        for case in (first, second, first, second):
            raw(case)(**case.inputs, **outputs)
        torch.cuda.synchronize()
        cases.assert_same(outputs, expected)


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


def test_the_tensors_device_is_used_and_the_current_one_is_left_alone():
    with torch.cuda.device(0):
        for index in range(torch.cuda.device_count()):
            case = cases.random_case(8, tokens=64, num_heads=64, device=f"cuda:{index}")
            torch.cuda.synchronize(index)  # a fault before this line is none of the kernel's
            outputs = cases.run(raw(case), case)
            torch.cuda.synchronize(index)
            assert torch.cuda.current_device() == 0
            on_first = cases.random_case(8, tokens=64, num_heads=64, device="cuda:0")
            cases.assert_same(
                {name: value.cpu() for name, value in outputs.items()},
                {name: value.cpu() for name, value in cases.run(raw(on_first), on_first).items()},
            )


def test_two_hundred_runs_give_the_same_bytes():
    case = cases.random_case(10, tokens=700, num_heads=64, device="cuda")
    expected = cases.run(raw(case), case)
    for _ in range(200):
        cases.assert_same(cases.run(raw(case), case), expected)
