"""What iq_ops itself costs, measurable without a GPU: calls over a backend that does nothing, dispatch, import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import calls, devicetime, matrix, report

# Collecting what other tests left behind takes as long as thousands of calls: not while a round is timed.
pytestmark = pytest.mark.benchmark(group="overhead", disable_gc=True)
IMPORT = """
import time
start = time.perf_counter()
import torch
torch_done = time.perf_counter()
import iq_ops
print(torch_done - start, time.perf_counter() - torch_done)
"""


@pytest.fixture
def noop() -> Iterator[None]:
    from benchmarks import noop_provider

    with noop_provider.installed():
        yield


@pytest.mark.quick
@pytest.mark.parametrize("fmt", matrix.FORMATS)
@pytest.mark.parametrize("way", calls.WAYS)
@pytest.mark.usefixtures("noop")
@pytest.mark.filterwarnings("default")  # those of torch.compile are not ours to mend
def test_overhead(benchmark: BenchmarkFixture, rows: list[report.Row], fmt: str, way: str) -> None:
    from benchmarks import noop_provider

    call = calls.call(way, noop_provider.do_nothing, calls.one_token_on_the_cpu(fmt), fmt, "noop")
    call()
    benchmark.pedantic(call, rounds=20, iterations=500, warmup_rounds=1)
    us = benchmark.stats.stats.min * 1e6  # whatever else the host does only adds
    benchmark.extra_info.update(fmt=fmt, way=way, us=us)
    rows.append(report.Row("over a backend that does nothing: us a call", fmt, way, us))


@pytest.mark.parametrize("fmt", matrix.FORMATS)
@pytest.mark.usefixtures("noop")
def test_dispatch(benchmark: BenchmarkFixture, rows: list[report.Row], fmt: str) -> None:
    """The first call of a signature: checks, every backend's why_not, the choice."""
    from benchmarks import noop_provider
    from iq_ops import _library

    call = calls.call("out", noop_provider.do_nothing, calls.one_token_on_the_cpu(fmt), fmt, "noop")
    benchmark.pedantic(call, setup=_library.forget_signatures, rounds=200, warmup_rounds=5)
    us = benchmark.stats.stats.median * 1e6
    benchmark.extra_info.update(fmt=fmt, us=us)
    rows.append(report.Row("over a backend that does nothing: us a call", fmt, "first of a signature", us))


@pytest.mark.benchmark(timer=devicetime.reported_time)
def test_import(benchmark: BenchmarkFixture, rows: list[report.Row]) -> None:
    torch_seconds = []

    def import_both() -> float:
        done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        seconds, added = map(float, done.stdout.split())
        torch_seconds.append(seconds)
        return added

    replay = devicetime.Replay(import_both, 1)
    benchmark.pedantic(replay, rounds=5, warmup_rounds=1)
    us, torch_us = min(replay.samples) * 1e6, min(torch_seconds) * 1e6
    benchmark.extra_info.update(us=us, torch_us=torch_us, share=us / torch_us)
    rows.append(report.Row("import: us, x import torch", "after torch", "iq_ops", us, torch_us))
