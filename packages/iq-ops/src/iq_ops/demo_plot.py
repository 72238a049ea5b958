"""The figure of `iq-ops demo --plot`: bytes, signal-to-noise and recall of both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .demo import TOP_K, Result

_COLOURS = {"bf16": "#8c8c8c", "fp8": "#0072b2", "mxfp4": "#d55e00"}  # told apart by colour-blind readers too
_NAMES = {"bf16": "bf16 in", "fp8": "FP8", "mxfp4": "MXFP4"}


class PlotUnavailableError(RuntimeError):
    """matplotlib is missing; the message has the command that installs it."""


def require() -> None:
    """Raise PlotUnavailableError if matplotlib cannot be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlotUnavailableError(
            f"--plot needs matplotlib ({error}). Remedy: python -m pip install 'iq-ops[plot]'"
        ) from error


def draw(result: Result, path: Path) -> None:
    """Write the figure to `path` as PNG. Raises PlotUnavailableError without matplotlib, OSError for a bad path."""
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    size, noise, recall = figure.subplots(1, 3)
    tokens, heads, head_dim = result.inputs["q"][0]
    figure.suptitle(f"The indexer query of DeepSeek-V4 quantized: {tokens} tokens, {heads} heads of {head_dim} dims")
    _draw_bytes(size, result, tokens * heads)
    _draw_noise(noise, result)
    _draw_recall(recall, result)
    for axes in (size, noise, recall):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png", dpi=150)


def _draw_bytes(axes: Any, result: Result, rows: int) -> None:
    sizes = {"bf16": result.input_bytes / rows, **{part.fmt: part.output_bytes / rows for part in result.formats}}
    bars = axes.bar(
        [_NAMES[fmt] for fmt in sizes], list(sizes.values()), color=[_COLOURS[fmt] for fmt in sizes], width=0.6
    )
    labels = [f"{value:.0f} B\n{sizes['bf16'] / value:.2f}x smaller" for value in sizes.values()]
    axes.bar_label(bars, [f"{sizes['bf16']:.0f} B", *labels[1:]], padding=3)
    axes.set(title="Query bytes per token and head", ylabel="bytes", ylim=(0, sizes["bf16"] * 1.18))


def _draw_noise(axes: Any, result: Result) -> None:
    for part in result.formats:
        axes.hist(part.snr_db.numpy(), bins=60, color=_COLOURS[part.fmt], alpha=0.85)
        axes.annotate(
            f"{_NAMES[part.fmt]}\nmedian {part.median_snr_db:.1f} dB",
            (part.median_snr_db, 0.99),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            color=_COLOURS[part.fmt],
        )
    axes.margins(y=0.25)
    axes.set(title="Signal-to-noise of the rows", xlabel="dB, against the rotated bf16 query", ylabel="rows")


def _draw_recall(axes: Any, result: Result) -> None:
    for part in result.formats:
        values = [100 * part.recall[k] for k in TOP_K]
        axes.plot(TOP_K, values, "o-", color=_COLOURS[part.fmt], label=_NAMES[part.fmt])
        for k, value in ((TOP_K[0], values[0]), (TOP_K[-1], values[-1])):
            axes.annotate(f"{value:.1f}", (k, value), (0, -14), textcoords="offset points", ha="center")
    lowest = min(100 * value for part in result.formats for value in part.recall.values())
    axes.set_xscale("log", base=2)
    axes.margins(x=0.1)
    axes.set_xticks(TOP_K, [str(k) for k in TOP_K])
    axes.minorticks_off()
    axes.set(
        title="Keys still retrieved", xlabel="k of the top-k", ylabel="recall against the bf16 query, %",
        ylim=(max(0.0, lowest - (100 - lowest) * 0.35 - 1), 100.5),
    )  # fmt: skip
    axes.legend(loc="lower right", frameon=False)
