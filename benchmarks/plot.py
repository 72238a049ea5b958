"""Draw the committed baselines: docs/performance-<gpu>.png and .svg, time against length with the cast's line.

`python -m benchmarks.plot [--into FOLDER] [BASELINE.json ...]`; one panel a format, one line a backend.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks import baseline

DOCS = Path(__file__).parents[1] / "docs"
TICKS = (1, 8, 64, 512, 4096, 32768)
TITLES = {"fp8": "FP8", "mxfp4": "MXFP4"}
COLORS = {"cute": "#0072b2", "triton": "#d55e00"}  # Okabe and Ito's, apart for every eye
STYLE = {
    "svg.hashsalt": "iq-ops",  # the same data give the same file
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
}


def draw(runs: baseline.Runs, folder: Path) -> list[Path]:
    """Write one PNG and one SVG of the runs' H=64 cases and return their paths."""
    with mpl.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True, layout="constrained")
        for axes, fmt in zip(panels, TITLES, strict=True):
            _panel(axes, runs, fmt)
        panels[0].set_ylabel("microseconds a call")
        versions = ", ".join(f"{name} {version}" for name, version in runs.machine["versions"].items())
        title = f"{runs.machine['gpu']['name']}, 64 heads of 128 dims, 64 of them rotary\n{versions}"
        figure.suptitle(title, fontsize=9)
        paths = [folder / f"performance-{runs.gpu}.{ending}" for ending in ("png", "svg")]
        for path in paths:
            figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
        plt.close(figure)
    return paths


def _panel(axes: Axes, runs: baseline.Runs, fmt: str) -> None:
    lines, cast = defaultdict(dict), {}
    for measured in runs.cases.values():
        about = measured.description
        if (about["fmt"], about["num_heads"], about["residency"]) == (fmt, 64, "peers"):
            lines[about["backend"], about["hadamard"]][about["tokens"]] = statistics.median(measured.us)
            cast[about["tokens"]] = statistics.median(measured.cast_us)
    _line(axes, cast, label="a plain cast of q", color="black", linestyle=":")
    for (backend, hadamard), times in sorted(lines.items()):
        label = backend + (" + Hadamard" if hadamard else "")
        _line(axes, times, label=label, color=COLORS.get(backend), linestyle="--" if hadamard else "-", marker="o")
    axes.set(title=TITLES[fmt], xlabel="tokens", xscale="log", yscale="log")
    axes.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS])
    axes.xaxis.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)


def _line(axes: Axes, times: dict[int, float], **style: Any) -> None:
    tokens = sorted(times)
    axes.plot(tokens, [times[count] for count in tokens], markersize=3, linewidth=1.4, **style)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the baselines given, or all that are committed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument("baselines", nargs="*", type=Path, metavar="BASELINE.json", help="default: the committed ones")
    parser.add_argument("--into", type=Path, default=DOCS, metavar="FOLDER", help="default: %(default)s")
    options = parser.parse_args(arguments)
    chosen = options.baselines or sorted(baseline.FOLDER.glob("*/baseline.json"))
    if not chosen:
        parser.exit(2, f"There is no baseline under {baseline.FOLDER}: adopt a run with benchmarks.compare.\n")
    mpl.use("agg")
    for path in chosen:
        for drawn in draw(baseline.load(path), options.into):
            print(drawn)


if __name__ == "__main__":
    main()
