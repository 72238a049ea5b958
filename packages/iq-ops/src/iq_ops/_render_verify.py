"""How `iq-ops verify` tells its verdict: what was compared, where it differs, and which convention it follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ._compare import Difference, TensorReport
from .conventions import AXES, QUESTIONS, Convention
from .dumps import Dump
from .specs import IndexerQSpec
from .verify import Verdict

NEAR = 0.5  # share of equal codes from which a convention is worth naming: unrelated FP4 codes agree in 15%
MANY_ULPS = 4096  # beyond this, weights differ by a factor and not by rounding


def verdict(dump: Dump, found: Verdict) -> RenderableType:
    """Everything `verify` found, in the order a reader asks: does it follow, where not, what instead, what then."""
    num_tokens, num_heads, head_dim = dump.inputs.q.shape
    rope_dim = dump.inputs.cos_sin_cache.shape[1]
    rope = rope_span(found.spec, head_dim, rope_dim)
    lines: list[RenderableType] = [
        Text.from_markup(
            f"[bold]{dump.fmt.upper()}[/]: {num_tokens:,} tokens, {num_heads} heads, D = {head_dim}, R = {rope_dim}; "
            f"softmax scale {dump.inputs.weights_softmax_scale:.7g}, head scale {dump.inputs.weights_head_scale:.7g}"
        ),
        Text.from_markup(_headline(found)),
    ]
    if not found.follows:
        lines += ["", Text.from_markup("[dim]Against the contract[/]"), _reports("contract", found.contract, rope)]
    lines += [_item(mark, text) for mark, text in _edges(found)]
    if found.closest is not None:
        lines += ["", *_closest(found, found.closest, rope)]
    if found.undecided and (found.closest is None or _near(found)):
        questions = ", ".join(QUESTIONS[axis] for axis in found.undecided)
        told = f"[dim]This dump cannot tell (other choices give the same bytes): {questions}.[/]"
        lines += ["", Text.from_markup(told)]
    return Group(*lines)


def rope_span(spec: IndexerQSpec, head_dim: int, rope_dim: int) -> tuple[int, int]:
    """The first rotary dim, and one past the last."""
    return (head_dim - rope_dim, head_dim) if spec.rope_at == "tail" else (0, rope_dim)


def options(spec: IndexerQSpec) -> str:
    """Name the options of a spec in words."""
    return f"{spec.rope_style}, {spec.rope_at}, {'Hadamard' if spec.hadamard else 'no Hadamard'}"


def _headline(found: Verdict) -> str:
    models = f" ({', '.join(found.models)})" if found.models else ""
    spec = f"{'as asked' if found.declared else 'with'}: [bold]{options(found.spec)}[/]{models}"
    if found.follows:
        return f"[bold green]✓ Follows contract 1[/], every byte of every output, {spec}."
    if found.closest is None:
        return f"[bold red]✗ Follows contract 1 in ordinary rows only[/], {spec}; its edge rows differ."
    return f"[bold red]✗ Does not follow contract 1[/] {spec}."


def _edges(found: Verdict) -> Iterator[tuple[str, str]]:
    for edge in found.edges:
        if edge.differing:
            differ = f"{edge.differing:,} of {edge.rows:,} rows differ; the contract wants {edge.wanted}."
            yield "[red]✗[/]", f"{edge.kind}: {differ}"
        else:
            yield "[green]✓[/]", f"{edge.kind}: {edge.rows:,} rows as the contract wants them ({edge.wanted})."


def _near(found: Verdict) -> bool:
    codes = found.closest_reports[0]
    return codes.count - codes.differing >= NEAR * codes.count


def _closest(found: Verdict, closest: Convention, rope: tuple[int, int]) -> Iterator[RenderableType]:
    codes = found.closest_reports[0]
    differing = sum(report.differing for report in found.closest_reports)
    agreement = share(codes.count - codes.differing, codes.count)
    changes = list(_changes(found.spec, closest))
    if not _near(found):
        yield Text.from_markup(
            f"[bold red]No known convention comes near[/]: the best one gives {agreement} of the codes. Are inputs and "
            "outputs of one call? Was q dumped before its rotation? Do the positions index this cache?"
        )
        return
    if differing == 0 and not closest.deviations():
        yield Text.from_markup(
            "[bold yellow]It follows the contract with other options[/], every byte of ordinary rows:"
        )
    elif differing == 0:
        yield Text.from_markup("[bold yellow]It follows a known convention[/], every byte of its ordinary rows:")
    elif changes:
        yield Text.from_markup(f"[bold yellow]Closest known convention[/], equal in {agreement} of the codes:")
    else:
        yield Text.from_markup(
            f"[bold yellow]No known convention is closer than the contract itself[/], equal in {agreement} of the "
            "codes of ordinary rows."
        )
    if changes:
        yield _change_table(changes)
    if closest.deviations():
        yield from (_item("", f"[bold]As {escape(engine)} does.[/]") for engine in found.engines)
    if differing and changes:
        yield Text.from_markup("[dim]Left over against this convention[/]")
        yield _reports("convention", found.closest_reports, rope)
    if found.weights_ratio is not None:
        yield _item(
            "→",
            f"weights_out is [bold]{found.weights_ratio:.7g}[/] times what it should be, in every row sampled: another "
            "softmax or head scale? A tensor-parallel shard keeps the whole model's head scale: see --head-scale.",
        )
    yield from (_item("→", hint) for hint in _hints(found.spec, closest))


def _item(mark: str, text: str) -> RenderableType:
    """A line with a hanging indent."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(" ", mark, text) if mark else grid.add_row(" ", text)
    return grid


def _changes(spec: IndexerQSpec, closest: Convention) -> Iterator[tuple[str, str]]:
    contract = Convention(spec.rope_style, spec.rope_at, hadamard="ascending" if spec.hadamard else "none")
    for axis in fields(Convention):
        wanted, actual = getattr(contract, axis.name), getattr(closest, axis.name)
        if wanted != actual:
            yield AXES[axis.name][wanted], AXES[axis.name][actual]


def _change_table(changes: Sequence[tuple[str, str]]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("contract", overflow="fold")
    table.add_column("this dump", overflow="fold", style="yellow")
    for wanted, actual in changes:
        table.add_row(escape(wanted), escape(actual))
    return Padding(table, (0, 0, 0, 2))


def _hints(spec: IndexerQSpec, closest: Convention) -> Iterator[str]:
    if (closest.hadamard != "none") != spec.hadamard:
        yield "A Hadamard on Q must match what was done to the K cache, or retrieval breaks."
    if (closest.rope_style, closest.rope_at) != (spec.rope_style, spec.rope_at) or closest.rotation != "contract":
        yield "Q and K must be rotated alike, or retrieval breaks beyond the first positions."
    if closest.weights.startswith("apart"):
        yield "The logits kernel must then multiply by the FP8 row scale itself, or heads are weighted wrongly."
    if closest.weights in ("scale only", "untouched"):
        yield "Without the constant softmax and head scales the ranking is the same, the logits are not."
    if closest.nibbles == "even high":
        yield "The logits kernel would pair each dim of Q with its neighbour in K: retrieval breaks."


def _reports(reference: str, reports: Sequence[TensorReport], rope: tuple[int, int]) -> RenderableType:
    grid = Table.grid(padding=(0, 1, 0, 0))
    for report in reports:
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
    noun = {"weights_out": "ulp", "q_scale": "binade"}.get(report.name, "code")
    if report.largest_step == 0:
        return ", in the sign of zero alone"
    if report.largest_step == 1:
        return f", each by one {noun} at most"
    return f", by up to {report.largest_step:,} {noun}s" if report.largest_step <= MANY_ULPS else ""


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
