"""Device time for pytest-benchmark: a timer that moves only by what is reported to it, and CUDA-graph replay to report.

`@pytest.mark.benchmark(timer=reported_time)` gives a case this timer; the case then benchmarks a `Replay`, whose every
call replays one graph of n calls and reports the n-th part of the device's time for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

ROUNDS, WARMUP_ROUNDS = 30, 2


class ReportedClock:
    """Seconds reported so far."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def advance(self, seconds: float) -> None:
        """Report `seconds`, which must not be negative: a timer never runs backwards."""
        if seconds < 0:
            raise ValueError(f"seconds: expected a duration, got {seconds}")
        self.seconds += seconds


CLOCK = ReportedClock()


def reported_time() -> float:
    """Return the seconds reported so far: the timer that a benchmark takes in place of time.perf_counter."""
    return CLOCK.seconds


@dataclass
class Replay:
    """A benchmark target: `run` makes `calls` calls and returns their seconds; the mean of one call is reported."""

    run: Callable[[], float]
    calls: int
    samples: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        seconds = self.run() / self.calls
        self.samples.append(seconds)
        CLOCK.advance(seconds)

    def median(self) -> float:
        """Median seconds of one call, over the last ROUNDS samples: those before them were warm-up."""
        return statistics.median(self.samples[-ROUNDS:])


def capture(calls: Sequence[Callable[[], None]], primer: Callable[[], object] | None = None) -> Replay:
    """Capture `calls` into one CUDA graph, after running each of them once, and return what replays it.

    Before each timed replay `primer` is queued (default: the graph itself), so that the device is busy while the host
    queues the start event and the graph: the time of a launch on the host is then no part of what is measured.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        graph.capture_begin()
        try:
            for call in calls:
                call()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    prime = primer or graph.replay

    def run() -> float:
        prime()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    return Replay(run, len(calls))


def measure(replay: Replay) -> float:
    """Median seconds of one call outside of any benchmark: for a yardstick that several cases share."""
    for _ in range(WARMUP_ROUNDS + ROUNDS):
        replay()
    return replay.median()
