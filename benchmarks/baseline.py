"""What is kept of bench runs: the figures of every device case, of one or more runs on one GPU.

A baseline is baselines/<gpu>/baseline.json: the machine, and a case's `us`, `cast_us` and `noise` a run. `noise` is the
relative spread of one call's time within a run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine

FOLDER = Path(__file__).parent / "baselines"
DESCRIPTION = ("fmt", "backend", "hadamard", "num_heads", "tokens", "residency", "gate", "bytes")


@dataclass(frozen=True)
class Measured:
    """One case in one or more runs, a figure a run. `description` is what the case is."""

    description: Mapping[str, Any]
    us: tuple[float, ...]
    cast_us: tuple[float, ...]
    noise: tuple[float, ...]

    @property
    def gated(self) -> tuple[float, ...]:
        """What the case is judged by, a figure a run: the ratio to the cast, or microseconds."""
        if self.description["gate"] == "us":
            return self.us
        return tuple(us / cast for us, cast in zip(self.us, self.cast_us, strict=True))


@dataclass(frozen=True)
class Runs:
    """One or more runs on one machine. `selection` is what `-m` and `-k` chose; empty: every case."""

    machine: Mapping[str, Any]
    selection: str
    cases: Mapping[str, Measured]

    @property
    def gpu(self) -> str | None:
        """The folder name of the GPU; None without one."""
        return machine.slug(self.machine["gpu"]["name"]) if self.machine["gpu"] else None


def from_report(path: Path) -> Runs:
    """Read what pytest-benchmark wrote with --benchmark-json: its device cases; ValueError for anything else."""
    try:
        return _read_report(json.loads(path.read_text()))
    except OSError as error:
        actual = error.strerror
    except ValueError:
        actual = "no JSON"
    except KeyError as error:
        actual = f"JSON without {error}"
    except (TypeError, AttributeError, statistics.StatisticsError):
        actual = "JSON of another kind"
    raise ValueError(f"{path}: expected a report of the benchmarks, got {actual}. Remedy: `nox -s bench` writes one.")


def _read_report(report: Any) -> Runs:
    cases = {}
    for benchmark in report["benchmarks"]:
        info = benchmark["extra_info"]
        if benchmark["group"] == "device":
            description = {key: info[key] for key in DESCRIPTION}
            noise = relative_noise(benchmark["stats"]["data"])
            cases[benchmark["param"]] = Measured(description, (info["us"],), (info["cast_us"],), (noise,))
    about = {key: report["machine_info"][key] for key in ("gpu", "versions")}
    return Runs(about, report["machine_info"]["selection"], cases)


def relative_noise(samples: Iterable[float]) -> float:
    """Estimate a standard deviation by the interquartile range, relative to the median: an outlier does not move it."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 1.349 / middle


def merge(runs: Iterable[Runs]) -> Runs:
    """Put runs of the same cases on the same GPU side by side; ValueError where they differ."""
    first, *others = runs
    for other in others:
        if (other.gpu, other.cases.keys()) != (first.gpu, first.cases.keys()):
            raise ValueError("runs: expected the same GPU and cases in each, got others. Remedy: adopt whole runs.")
    cases = {}
    for name, measured in first.cases.items():
        parts = [run.cases[name] for run in (first, *others)]
        columns = (sum((getattr(part, field) for part in parts), ()) for field in ("us", "cast_us", "noise"))
        cases[name] = Measured(measured.description, *columns)
    return Runs(first.machine, first.selection, cases)


def save(runs: Runs, folder: Path = FOLDER) -> Path:
    """Write the baseline of the runs' GPU and return its path; ValueError without a GPU."""
    if runs.gpu is None:
        raise ValueError("runs: expected runs on a GPU, got one without. Remedy: run `nox -s bench` on the GPU.")
    path = folder / runs.gpu / "baseline.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(runs), indent=1) + "\n")
    return path


def load(path: Path) -> Runs:
    """Read a baseline that `save` wrote."""
    stored = json.loads(path.read_text())
    cases = {
        name: Measured(case["description"], *(tuple(case[field]) for field in ("us", "cast_us", "noise")))
        for name, case in stored["cases"].items()
    }
    return Runs(stored["machine"], stored["selection"], cases)
