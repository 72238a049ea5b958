"""The device timer through pytest-benchmark's own interface, with seconds that are made up."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import devicetime, inputs, matrix, report


@pytest.mark.benchmark(timer=devicetime.reported_time)
def test_a_benchmark_sees_the_reported_seconds_of_one_call(benchmark: BenchmarkFixture) -> None:
    seconds = iter([100.0] * 5 + [6.4e-5, 12.8e-5, 19.2e-5])
    replay = devicetime.Replay(lambda: next(seconds), calls=64)
    benchmark.pedantic(replay, rounds=3, warmup_rounds=5)
    if benchmark.enabled:  # under xdist pytest-benchmark runs a target once and times nothing
        assert benchmark.stats.stats.data == pytest.approx([1e-6, 2e-6, 3e-6])
        assert replay.samples[-3:] == pytest.approx([1e-6, 2e-6, 3e-6])


def test_the_clock_stands_still_but_for_reports() -> None:
    before = devicetime.reported_time()
    assert devicetime.reported_time() == before
    devicetime.CLOCK.advance(0.25)
    assert devicetime.reported_time() == before + 0.25
    with pytest.raises(ValueError, match="expected a duration"):
        devicetime.CLOCK.advance(-1e-9)


def test_the_median_leaves_the_warm_up_out() -> None:
    replay = devicetime.Replay(lambda: 1.0, calls=1, samples=[99.0] * devicetime.WARMUP_ROUNDS)
    replay.samples += [1.0] * 14 + [2.0] * 2 + [3.0] * 14
    assert replay.median() == 2.0


def test_a_shared_yardstick_takes_as_many_samples_as_a_case() -> None:
    replay = devicetime.Replay(lambda: 8.0, calls=4)
    assert devicetime.measure(replay) == 2.0
    assert len(replay.samples) == devicetime.WARMUP_ROUNDS + devicetime.ROUNDS


@pytest.mark.parametrize(("tokens", "expected"), [(1, 64), (1024, 64), (8192, 9), (32768, 8)])
def test_sets_follow_the_rule(tokens: int, expected: int) -> None:
    assert inputs.number_of_sets(inputs.Shape(tokens), "fp8") == expected


def test_bytes_of_a_call_are_counted_by_hand() -> None:
    q, row = 2 * 64 * 128, 64 * (2 + 4) + 8 + 4 * 64
    assert inputs.bytes_of_call(inputs.Shape(1), "fp8") == q + 64 * 128 + row
    assert inputs.bytes_of_call(inputs.Shape(1), "mxfp4") == q + 64 * 64 + 64 * 4 + row


def test_fewer_heads_have_equal_bytes_and_every_length_has_every_format() -> None:
    cases = matrix.cases()
    assert len({case.id for case in cases}) == len(cases)
    assert {case.tokens * case.num_heads for case in cases if case.num_heads != 64} == {
        64 * tokens for tokens in matrix.FEW_HEADS_TOKENS
    }
    for fmt in matrix.FORMATS:
        for backend in matrix.BACKENDS:
            chosen = [case for case in cases if (case.fmt, case.backend, case.num_heads) == (fmt, backend, 64)]
            assert {case.tokens for case in chosen if case.residency == "peers"} == set(matrix.TOKENS)
            assert {case.tokens for case in chosen if case.residency == "cold"} == {1, 8, 32, 64, 128, 256}


def test_the_table_puts_a_length_on_a_line() -> None:
    rows = [
        report.Row("fp8", 1, "cute", 1.0, 0.5),
        report.Row("fp8", 8, "cute", 2.0),
        report.Row("fp8", 1, "triton", 3.25),
    ]
    assert report.table(rows) == [
        "fp8",
        "         cute  triton",
        "  1  1 x2.000    3.25",
        "  8         2        ",
    ]
