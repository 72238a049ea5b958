"""How the command line shows where tensors differ: how many elements, by how much, in which rows and dims."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from ._compare import Difference, TensorReport

_STEPS = {
    "q_fp8": ("step of e4m3", "steps of e4m3"),
    "q_packed": ("step of E2M1", "steps of E2M1"),
    "q_scale": ("binade", "binades"),
    "weights_out": ("ulp", "ulps"),
}
MANY_ULPS = 4096  # beyond this, weights differ by a factor and not by rounding


def reports(reference: str, found: Sequence[TensorReport], rope: tuple[int, int]) -> RenderableType:
    """Each output against what `reference` gives; `rope` is the first rotary dim, and one past the last."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for report in found:
        name = f"[bold]{report.name}[/]"
        if report.first is None:
            grid.add_row(" ", "[green]✓[/]", name, f"all {report.count:,} equal")
            continue
        differing = f"{report.differing:,} of {report.count:,} differ ({share(report.differing, report.count)})"
        grid.add_row(" ", "[red]✗[/]", name, f"{differing}{_size(report)}")
        grid.add_row("", "", "", f"[dim]{_where(report, rope)}[/]")
        grid.add_row("", "", "", f"first at {_first(reference, report.first)}")
    return grid


def _size(report: TensorReport) -> str:
    one, many = _STEPS[report.name]
    if report.largest_step == 0:
        return ", in the sign of zero alone"
    if report.largest_step == 1:
        return f", each by one {one} at most"
    return f", by up to {report.largest_step:,} {many}" if report.largest_step <= MANY_ULPS else ""


def _first(reference: str, first: Difference) -> str:
    place = f"token {first.token}, head {first.head}" + (f", dim {first.dim}" if first.dim is not None else "")
    return (
        f"[bold]{place}[/]: {reference} {first.expected} ({first.expected_value:.7g}), "
        f"dump [red]{first.actual} ({first.actual_value:.7g})[/]"
    )


def _where(report: TensorReport, rope: tuple[int, int]) -> str:
    parts = [_extent("token", report.tokens), _extent("head", report.heads)]
    if report.dims is not None and report.name != "q_scale":
        text = _extent("dim", report.dims)
        _, first, stop, count = report.dims
        if rope != (0, count):
            if rope[0] <= first and stop <= rope[1]:
                text += ", all rotary"
            elif stop <= rope[0] or first >= rope[1]:
                text += ", none rotary"
        parts.append(text)
    elif report.dims is not None:
        parts.append(_extent("block", report.dims))
    return "in " + "; ".join(parts)


def _extent(noun: str, extent: tuple[int, int, int, int]) -> str:
    number, first, stop, count = extent
    if number == count:
        return f"all {count:,} {noun}s"
    if number == 1:
        return f"{noun} {first} alone"
    return f"{number:,} of {count:,} {noun}s ({first}-{stop - 1})"


def share(part: int, whole: int) -> str:
    """A percentage with as many digits as it takes not to round to 0% or 100%."""
    if whole == 0 or part in (0, whole):
        return f"{part and 100}%"
    for digits in (1, 2, 3, 4, 5, 6):
        text = f"{100 * part / whole:.{digits}f}"
        if float(text) not in (0.0, 100.0):
            return text + "%"
    return "<0.000001%" if part < whole / 2 else ">99.999999%"
