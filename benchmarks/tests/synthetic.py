"""Bench reports that no GPU wrote: what the gate and the plot are tested with."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import matrix

GPU = {"name": "NVIDIA H200"}
VERSIONS = {"torch": "2.11.0", "triton": "3.6.0"}


def report(
    seed: int,
    *,
    slow: Mapping[str, float] | None = None,
    gpu: Mapping[str, Any] | None = GPU,
    selection: str = "",
    keep: Callable[[matrix.Case], bool] = lambda case: True,
) -> dict[str, Any]:
    """What a bench run writes. A case's times scatter within a run and shift from run to run, each case by its own.

    `slow` multiplies the times of some cases; `keep` leaves cases out, by what they are.
    """
    scatter, benchmarks = random.Random(seed), []
    for index, case in enumerate(matrix.cases()):
        nature = random.Random(index)  # of the case, the same in every run
        usual_us = 0.9 + 2.8e-3 * case.tokens * case.num_heads / 64
        noise, shift = nature.uniform(0.002, 0.02), nature.uniform(0.001, 0.010)
        middle = usual_us * scatter.gauss(1, shift) * (slow or {}).get(case.id, 1.0)
        samples = sorted(middle * abs(scatter.gauss(1, noise)) * 1e-6 for _ in range(30))
        cast_us = usual_us / 1.1 * scatter.gauss(1, shift / 2)
        info = {**dataclasses.asdict(case), "gate": case.gate, "bytes": 1, "us": samples[15] * 1e6, "cast_us": cast_us}
        if keep(case):
            stats = {"data": samples}
            benchmarks.append({"group": "device", "param": case.id, "extra_info": info, "stats": stats})
    benchmarks.append({"group": "host", "param": "raw", "extra_info": {"us": 5.0}, "stats": {"data": [5e-6] * 4}})
    machine = {"gpu": gpu, "versions": VERSIONS, "selection": selection}
    return {"machine_info": machine, "benchmarks": benchmarks}


def write(folder: Path, name: str, content: Mapping[str, Any]) -> Path:
    """Put a report where `nox -s bench` would, as `name`.json of `folder`."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path
