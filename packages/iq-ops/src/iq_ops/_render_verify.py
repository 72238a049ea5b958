"""How `iq-ops verify` tells its verdict: what was compared, where it differs, and which convention it follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import torch
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ._render_reports import reports, share
from .conventions import AXES, QUESTIONS, Convention
from .dumps import Dump
from .specs import IndexerQSpec
from .verify import Verdict

NEAR = 0.5  # share of equal codes from which a convention is worth naming: unrelated FP4 codes agree in 15%
MOST_HEADS = 256  # of a model whose shard a dump may be


def verdict(dump: Dump, found: Verdict, notes: Sequence[str] = ()) -> RenderableType:
    """Everything `verify` found, in the order a reader asks: does it follow, where not, what instead, what then.

    notes: what was assumed before, told below the verdict.
    """
    num_tokens, num_heads, head_dim = dump.inputs.q.shape
    rope_dim = dump.inputs.cos_sin_cache.shape[1]
    rope = rope_span(found.spec, head_dim, rope_dim)
    lines: list[RenderableType] = [
        Text.from_markup(
            f"[bold]{dump.fmt.upper()}[/]: {num_tokens:,} tokens, {num_heads} heads, D = {head_dim}, R = {rope_dim}; "
            f"softmax scale {dump.inputs.weights_softmax_scale:.7g}, head scale {dump.inputs.weights_head_scale:.7g}"
        ),
        *(Text.from_markup(line) for line in _headline(found)),
        *(_item("[bold yellow]![/]", escape(note)) for note in notes),
    ]
    if not found.follows:
        lines += ["", Text.from_markup("[dim]Against the contract[/]"), reports("contract", found.contract, rope)]
    lines += [_item(mark, text) for mark, text in _edges(found)]
    if found.closest is not None:
        lines += ["", *_closest(dump, found, found.closest, rope)]
    if found.undecided and (found.closest is None or _near(found)):
        questions = ", ".join(QUESTIONS[axis] for axis in found.undecided)
        told = f"[dim]Not decided by this dump, where other choices give the same bytes: {questions}.[/]"
        lines += ["", Text.from_markup(told)]
    return Group(*lines)


def rope_span(spec: IndexerQSpec, head_dim: int, rope_dim: int) -> tuple[int, int]:
    """The first rotary dim, and one past the last."""
    return (head_dim - rope_dim, head_dim) if spec.rope_at == "tail" else (0, rope_dim)


def options(spec: IndexerQSpec) -> str:
    """Name the options of a spec in words."""
    return f"{spec.rope_style}, {spec.rope_at}, {'Hadamard' if spec.hadamard else 'no Hadamard'}"


def _headline(found: Verdict) -> Iterator[str]:
    models = f" ({', '.join(found.models)})" if found.models else ""
    if found.follows:
        yield "[bold green]✓ Follows contract 1[/], every byte of every output"
    elif found.closest is None:
        yield "[bold red]✗ Follows contract 1 in ordinary rows only[/]; its edge rows differ"
    else:
        yield "[bold red]✗ Does not follow contract 1[/]"
    yield f"  {'as asked' if found.declared else 'with'}: [bold]{options(found.spec)}[/]{models}"


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


def _closest(dump: Dump, found: Verdict, closest: Convention, rope: tuple[int, int]) -> Iterator[RenderableType]:
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
    elif codes.differing == 0:
        yield Text.from_markup(
            "[bold yellow]All codes of ordinary rows are the contract's[/], and no known convention gives the rest."
        )
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
        yield reports("convention", found.closest_reports, rope)
    if found.weights_ratio is not None:
        factor = f"weights_out is [bold]{found.weights_ratio:.7g}[/] times what it should be, in every row sampled."
        yield _item("→", f"{factor} {_other_scale(dump, found.weights_ratio)}")
    yield from (_item("→", hint) for hint in _hints(found.spec, closest))


def _other_scale(dump: Dump, ratio: float) -> str:
    """What explains the ratio: a scale left out or applied twice, that of a model whose shard this is, or another."""
    softmax, head = dump.inputs.weights_softmax_scale, dump.inputs.weights_head_scale
    tolerance = 1e-5 if dump.weights_out.dtype == torch.float32 else 2.0**-9
    scale, num_heads = head * ratio, dump.inputs.q.shape[1]
    if scale >= MOST_HEADS**-0.5:
        whole = round(scale**-2)
        if whole > num_heads and whole % num_heads == 0 and abs(scale * whole**0.5 - 1) < tolerance:
            return (
                f"It fits a shard of a model of {whole} heads, which keeps the whole model's head scale: "
                f"--head-scale {whole**-0.5!r}"
            )
    for name, known in (("softmax", softmax), ("head", head)):
        if known > 0 and known != 1:
            if abs(ratio / known - 1) < tolerance:
                return f"That is the {name} scale once more: it is applied twice."
            if abs(ratio * known - 1) < tolerance:
                return f"The {name} scale is left out."
    return f"Another softmax or head scale? If the softmax scale is right: --head-scale of about {scale:.7g}"


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
    if closest.scale_bytes == "big":
        yield "The logits kernel would apply each block's scale to another block: retrieval breaks."
    if closest.nibbles == "even high":
        yield "The logits kernel would pair each dim of Q with its neighbour in K: retrieval breaks."
