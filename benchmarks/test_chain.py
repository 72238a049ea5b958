"""What programmatic dependent launch buys between a matmul and a reader of the codes, in one CUDA graph."""

from __future__ import annotations

import contextlib

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import devicetime, inputs, matrix, report

pytestmark = [pytest.mark.gpu, pytest.mark.benchmark(timer=devicetime.reported_time, group="chain")]


@pytest.mark.parametrize("tokens", [1, pytest.param(64, marks=pytest.mark.quick), 256])
@pytest.mark.parametrize("pdl", [True, False], ids=["pdl", "nopdl"])
@pytest.mark.parametrize("fmt", matrix.FORMATS)
def test_chain(benchmark: BenchmarkFixture, rows: list[report.Row], fmt: str, pdl: bool, tokens: int) -> None:
    from benchmarks import chain

    raw = getattr(pytest.importorskip("iq_kernels_cute"), f"indexer_q_{fmt}")
    with contextlib.nullcontext() if pdl else chain.without_pdl("cute"):
        steps = chain.steps(raw, inputs.Shape(tokens), fmt, pdl)
        whole = devicetime.capture([chain.in_order(*step) for step in steps])
    ends = devicetime.capture([chain.in_order(producer, consumer) for producer, _, consumer in steps])
    benchmark.pedantic(whole, rounds=devicetime.ROUNDS, warmup_rounds=devicetime.WARMUP_ROUNDS)

    us, ends_us = whole.median() * 1e6, devicetime.measure(ends) * 1e6
    benchmark.extra_info.update(fmt=fmt, pdl=pdl, tokens=tokens, us=us, without_the_operation_us=ends_us)
    column = "with PDL" if pdl else "without"
    rows.append(report.Row(f"chain {fmt}: us that cute adds to a matmul and a reader", tokens, column, us - ends_us))
