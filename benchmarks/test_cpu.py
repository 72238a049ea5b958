"""What a machine without a GPU can tell of the backends: the reference's speed, and compile time a variant."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

import cases
from benchmarks import matrix, report
from iq_ops import _abi, reference

pytestmark = [
    pytest.mark.benchmark(group="cpu"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="measured on machines without a GPU, whose time is scarce"),
]


@pytest.mark.parametrize("tokens", [pytest.param(1, marks=pytest.mark.quick), 64, 1024])
@pytest.mark.parametrize("hadamard", [False, True], ids=["plain", "hadamard"])
@pytest.mark.parametrize("fmt", matrix.FORMATS)
def test_reference(benchmark: BenchmarkFixture, rows: list[report.Row], fmt: str, hadamard: bool, tokens: int) -> None:
    case = cases.random_case(fmt=fmt, tokens=tokens, num_heads=64, edges=False, hadamard=hadamard)
    outputs = cases.poisoned_outputs(case, sentinel_rows=0)
    benchmark.pedantic(getattr(reference, case.op), kwargs={**case.inputs, **outputs}, rounds=5, warmup_rounds=1)
    us = benchmark.stats.stats.median * 1e6
    benchmark.extra_info.update(fmt=fmt, hadamard=hadamard, tokens=tokens, us=us)
    rows.append(report.Row("reference on the CPU: us", tokens, fmt + "+hadamard" * hadamard, us))


@pytest.mark.parametrize("hadamard", [False, True], ids=["plain", "hadamard"])
@pytest.mark.parametrize("fmt", matrix.FORMATS)
@pytest.mark.parametrize("backend", matrix.BACKENDS)
def test_compile(
    benchmark: BenchmarkFixture,
    rows: list[report.Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    fmt: str,
    hadamard: bool,
) -> None:
    """Every variant of a DeepSeek-V4 workload for sm_90, without a device and with empty caches."""
    monkeypatch.setenv("IQ_KERNELS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    provider = importlib.import_module(f"iq_kernels_{backend}.provider")
    jobs = provider.warmup_jobs(_workload(fmt, hadamard))
    seconds: dict[str, float] = {}

    def compile_all() -> None:
        for label, job in jobs:
            start = time.perf_counter()
            job()
            seconds[label] = time.perf_counter() - start

    before = provider.compile_count()
    benchmark.pedantic(compile_all, rounds=1)
    assert provider.compile_count() - before == len(jobs) > 0
    us = sum(seconds.values()) / len(jobs) * 1e6
    benchmark.extra_info.update(backend=backend, fmt=fmt, hadamard=hadamard, us=us, variant_seconds=seconds)
    rows.append(report.Row("compile: us a variant", fmt + "+hadamard" * hadamard, f"{backend} ({len(jobs)})", us))


def _workload(fmt: str, hadamard: bool) -> _abi.Workload:
    return _abi.Workload(
        op=f"indexer_q_{fmt}",
        num_heads=64,
        head_dim=128,
        rope_dim=64,
        positions_dtype="int64",
        cos_sin_cache_dtype="float32",
        weights_dtype="bfloat16",
        weights_out_dtype="float32",
        rope_style="interleaved",
        rope_at="tail",
        hadamard=hadamard,
        target="sm_90",
        device_index=None,
    )
