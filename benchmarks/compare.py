"""Gate a bench run against the committed baseline of its GPU: `python -m benchmarks.compare RUN.json`.

A case is judged by its ratio to the cast from 512 tokens of 64 heads on, by its microseconds below, and fails above a
threshold of its own: SIGMAS times the spread that was measured for it, within the runs and between them, but from
MINIMUM to MAXIMUM, so that a slowdown of 1.3x fails whatever the noise.

`--adopt` makes the given runs the baseline instead. Exit code: 0 all well, 1 slower or vanished, 2 nothing to compare.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import baseline

SIGMAS = 6.0
MINIMUM, MAXIMUM = 1.08, 1.18
ROUNDS = 30  # samples behind a median
FAILING = ("slower", "vanished")


@dataclass(frozen=True)
class Finding:
    """What became of one case: "ok", "slower", "faster", "new", "vanished" or "not run"."""

    case: str
    verdict: str
    text: str


def spread(measured: baseline.Measured) -> float:
    """Relative standard deviation of a case's figure: of its median within a run, and from run to run where known."""
    median_of_rounds = statistics.median(measured.noise) * 1.2533 / math.sqrt(ROUNDS)
    if len(measured.gated) < 2:
        return median_of_rounds
    return max(median_of_rounds, statistics.stdev(measured.gated) / statistics.mean(measured.gated))


def threshold(measured: baseline.Measured) -> float:
    """The factor over its baseline from which a case counts as slower."""
    return min(MAXIMUM, max(MINIMUM, 1 + SIGMAS * spread(measured)))


def judge(run: baseline.Runs, base: baseline.Runs) -> list[Finding]:
    """One finding a case of either."""
    findings = []
    for name in sorted(base.cases.keys() | run.cases.keys()):
        if name not in run.cases:
            verdict = "not run" if run.selection else "vanished"
            text = f"in the baseline, not in this run (selection: {run.selection or 'all'})"
            findings.append(Finding(name, verdict, text))
        elif name not in base.cases:
            findings.append(Finding(name, "new", "in this run, not in the baseline: adopt it to gate it"))
        else:
            findings.append(_judge_case(name, run.cases[name], base.cases[name]))
    return findings


def _judge_case(name: str, now: baseline.Measured, before: baseline.Measured) -> Finding:
    unit = "casts" if before.description["gate"] == "ratio" else "us"
    value, usual, limit = statistics.median(now.gated), statistics.median(before.gated), threshold(before)
    change = value / usual
    verdict = "slower" if not change <= limit else "faster" if change < 1 / limit else "ok"
    return Finding(name, verdict, f"{value:.3f} {unit}, baseline {usual:.3f}: x{change:.3f}, limit x{limit:.3f}")


def unfit(run: baseline.Runs, folder: Path) -> str | None:
    """Say why there is nothing to compare `run` with in `folder`; None if there is."""
    known = sorted(path.parent.name for path in folder.glob("*/baseline.json"))
    have = f"baselines are there for {', '.join(known)}" if known else f"there is no baseline under {folder}"
    if run.gpu is None:
        return f"this run had no GPU, and only device cases are gated; {have}."
    if not run.cases:
        return f"this run has no device case; {have}."
    if run.gpu not in known:
        changed = "the GPU changed: " if known else ""
        return f"{changed}this run is of {run.gpu}; {have}. Adopt this run with --adopt to make it one."
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or adopt; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help="what `nox -s bench` wrote")
    parser.add_argument("--adopt", action="store_true", help="make these runs the baseline of their GPU")
    parser.add_argument("--baselines", type=Path, default=baseline.FOLDER, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        run = baseline.merge([baseline.from_report(path) for path in options.runs])
        if options.adopt:
            print(f"wrote {baseline.save(run, options.baselines)}: {len(run.cases)} cases, {len(options.runs)} run(s)")
            return 0
    except ValueError as error:
        print(f"Nothing was {'adopted' if options.adopt else 'compared'}: {error}")
        return 2
    reason = unfit(run, options.baselines)
    if reason is not None:
        print(f"Nothing was compared: {reason}")
        return 2
    findings = judge(run, baseline.load(options.baselines / str(run.gpu) / "baseline.json"))
    for finding in findings:
        if finding.verdict not in ("ok", "not run"):
            print(f"{finding.verdict:8} {finding.case}: {finding.text}")
    verdicts = [finding.verdict for finding in findings]
    print(f"{run.gpu}: " + ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)))
    return int(any(verdict in FAILING for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
