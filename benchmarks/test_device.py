"""Device time of the raw functions: CUDA-graph replay over rotating inputs, beside a plain cast of the same q."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import devicetime, inputs, matrix, report

pytestmark = [pytest.mark.gpu, pytest.mark.benchmark(timer=devicetime.reported_time, group="device")]


@pytest.mark.parametrize("case", matrix.parameters())
def test_device(benchmark: BenchmarkFixture, rows: list[report.Row], case: matrix.Case) -> None:
    from benchmarks import casts

    shape = inputs.Shape(case.tokens, case.num_heads)
    raw = getattr(pytest.importorskip(f"iq_kernels_{case.backend}"), f"indexer_q_{case.fmt}")
    sets = inputs.arguments(shape, case.fmt)
    calls = [functools.partial(raw, **arguments, hadamard=case.hadamard) for arguments in sets]
    replay = devicetime.capture(calls, inputs.evict_l2 if case.residency == "cold" else None)
    benchmark.pedantic(replay, rounds=devicetime.ROUNDS, warmup_rounds=devicetime.WARMUP_ROUNDS)

    us, cast_us = replay.median() * 1e6, casts.cast_seconds(case.fmt, shape, case.residency) * 1e6
    moved = inputs.bytes_of_call(shape, case.fmt)
    benchmark.extra_info.update(
        dataclasses.asdict(case),
        us=us,
        cast_us=cast_us,
        ratio=us / cast_us,
        gate=case.gate,
        bytes=moved,
        gb_per_s=moved / us * 1e-3,
        sets=len(sets),
        bytes_over_l2=moved * len(sets) / inputs.l2_bytes(),
    )
    block = f"device {case.fmt} H={case.num_heads} {case.residency}: us, x cast"
    rows.append(report.Row(block, case.tokens, case.backend + "+hadamard" * case.hadamard, us, cast_us))
