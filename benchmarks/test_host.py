"""Host time of one call on a GPU: raw, into buffers, public, compiled; and the first call of a process."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import calls, devicetime, inputs, matrix, report

# Collecting what other tests left behind takes as long as thousands of calls: not while a round is timed.
pytestmark = [pytest.mark.gpu, pytest.mark.benchmark(group="host", disable_gc=True)]
ROUNDS, ITERATIONS = 20, 200
FIRST_CALL = """
import time, torch, iq_ops
from benchmarks import inputs
names = "positions", "q", "cos_sin_cache", "weights", "weights_softmax_scale", "weights_head_scale"
positional = [inputs.arguments(inputs.Shape(1), {fmt!r})[0][name] for name in names]
torch.cuda.synchronize()
start = time.perf_counter()
iq_ops.fused_indexer_q_rope_quant(*positional, {fmt!r} == "mxfp4", backend={backend!r})
torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


@pytest.mark.parametrize("way", calls.WAYS)
@pytest.mark.parametrize("fmt", matrix.FORMATS)
@pytest.mark.parametrize("backend", [pytest.param("cute", marks=pytest.mark.quick), "triton"])
@pytest.mark.filterwarnings("default")  # those of torch.compile are not ours to mend
def test_host(benchmark: BenchmarkFixture, rows: list[report.Row], backend: str, fmt: str, way: str) -> None:
    raw = getattr(pytest.importorskip(f"iq_kernels_{backend}"), f"indexer_q_{fmt}")
    arguments = inputs.arguments(inputs.Shape(1), fmt)[0]
    call, raw_call = calls.call(way, raw, arguments, fmt, backend), calls.call("raw", raw, arguments, fmt, backend)
    call()
    raw_seconds: list[float] = []

    def time_raw() -> None:
        """Time the raw call after every round: a host whose clock changes then changes both."""
        torch.cuda.synchronize()
        gc.disable()  # as pytest-benchmark does around the call itself
        start = time.perf_counter()
        for _ in range(ITERATIONS):
            raw_call()
        raw_seconds.append((time.perf_counter() - start) / ITERATIONS)
        gc.enable()
        torch.cuda.synchronize()

    benchmark.pedantic(call, rounds=ROUNDS, iterations=ITERATIONS, warmup_rounds=1, teardown=time_raw)
    seconds = benchmark.stats.stats.data  # the warm-up's raw time comes first, that of a last single call last
    ratio = statistics.median(one / other for one, other in zip(seconds, raw_seconds[1 : 1 + ROUNDS], strict=True))
    us = statistics.median(seconds) * 1e6
    benchmark.extra_info.update(fmt=fmt, backend=backend, way=way, us=us, ratio=ratio)
    rows.append(report.Row("host: us a call, x raw", f"{backend} {fmt}", way, us, us / ratio))


@pytest.mark.parametrize("cache", ["cold", "warm"])
@pytest.mark.parametrize("backend", matrix.BACKENDS)
@pytest.mark.benchmark(timer=devicetime.reported_time)
def test_first_call(
    benchmark: BenchmarkFixture,
    rows: list[report.Row],
    tmp_path_factory: pytest.TempPathFactory,
    backend: str,
    cache: str,
) -> None:
    pytest.importorskip(f"iq_kernels_{backend}")
    folder = str(tmp_path_factory.getbasetemp() / f"cache-{backend}")  # the warm case finds what the cold one left
    environment = {**os.environ, "IQ_KERNELS_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
    command = [sys.executable, "-c", FIRST_CALL.format(fmt="fp8", backend=backend)]

    def first_call() -> float:
        root = Path(__file__).parents[1]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
        return float(done.stdout)

    replay = devicetime.Replay(first_call, 1)
    benchmark.pedantic(replay, rounds=1)
    benchmark.extra_info.update(backend=backend, cache=cache, us=replay.median() * 1e6)
    rows.append(report.Row("first call: us", f"disk cache {cache}", backend, replay.median() * 1e6))
