"""The compact table at the end of a bench run: microseconds and the ratio to a yardstick, a line a length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One measurement. `yardstick_us`: what its ratio is taken to, a cast's time or another call's; None: no ratio."""

    block: str
    line: int | str
    column: str
    us: float
    yardstick_us: float | None = None


def table(rows: Iterable[Row]) -> list[str]:
    """Format rows: blocks and columns in order of first appearance; a cell is `microseconds xratio`."""
    blocks: dict[str, list[Row]] = {}
    for row in rows:
        blocks.setdefault(row.block, []).append(row)
    return [text for name, members in blocks.items() for text in _block(name, members)]


def _block(name: str, rows: list[Row]) -> list[str]:
    columns, lines = list(dict.fromkeys(row.column for row in rows)), list(dict.fromkeys(row.line for row in rows))
    cells = {(row.line, row.column): row for row in rows}
    grid = [["", *columns]] + [[str(line), *(_cell(cells.get((line, c))) for c in columns)] for line in lines]
    widths = [max(len(row[i]) for row in grid) for i in range(len(grid[0]))]
    return [name] + ["  " + "  ".join(text.rjust(w) for text, w in zip(row, widths, strict=True)) for row in grid]


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    digits = f"{row.us:.4g}" if row.us < 1000 else f"{row.us:,.0f}"
    return digits + (f" x{row.us / row.yardstick_us:.3f}" if row.yardstick_us else "")
