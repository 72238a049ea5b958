"""How the command line shows what it found: each function turns one result into Rich renderables."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from . import demo, doctor
from ._render_verify import options
from .quantize import Quantized
from .specs import IndexerQSpec

_GOOD, _BAD, _WARN = "[bold green]✓[/]", "[bold red]✗[/]", "[bold yellow]![/]"


def demo_result(result: demo.Result) -> RenderableType:
    """The batch, then one table with a column for each format."""
    made = ", ".join(f"{name} {_shape(shape)} {dtype}" for name, (shape, dtype) in result.inputs.items())
    table = _table("", *(f"[bold]{part.fmt}[/]" for part in result.formats))
    parts = result.formats
    table.add_row("backend", *(f"[bold]{part.backend}[/]" for part in parts))
    for index in range(max(len(part.tensors) for part in parts)):
        cells = []
        for part in parts:
            named = list(part.tensors.items())[index : index + 1]
            cells.append("".join(f"{name} {_shape(shape)} [dim]{dtype}[/]" for name, (shape, dtype) in named))
        table.add_row("outputs" if index == 0 else "", *cells)
    rows = result.inputs["q"][0][0] * result.inputs["q"][0][1]
    before = result.input_bytes // rows
    table.add_row(f"bytes a row, of {before}", *(_saved(before, part.output_bytes // rows) for part in parts))
    table.add_row("signal-to-noise", *(f"[bold]{part.median_snr_db:.1f} dB[/] [dim]median row[/]" for part in parts))
    for k in demo.SHOWN_TOP_K:
        table.add_row(f"recall of the top {k}", *(f"[bold]{part.recall[k]:.2%}[/]" for part in parts))
    reasons: dict[str, list[str]] = {}
    for part in parts:
        for name, reason in part.refused.items():
            reasons.setdefault(f"{name}: {reason}", []).append(part.fmt)
    why = [f"[dim]not {escape(reason)} ({', '.join(formats)})[/]" for reason, formats in reasons.items()]
    recall = (
        "Recall: the share of the keys with the k largest logits, sum_h w_h * relu(q_h . k) under the rotated bf16 "
        "query, that are still among the k largest."
    )
    return Group(
        Text.from_markup(f"[bold]DeepSeek-V4 indexer query[/] on {escape(result.device)} ({escape(result.target)})"),
        Text.from_markup(f"[dim]in: {escape(made)}[/]"),
        "",
        table,
        "",
        *(Text.from_markup(line) for line in why),
        Text.from_markup(f"[dim]{escape(recall)}[/]"),
        Text.from_markup(f"[dim]Synthetic: {escape(demo.HOW_MADE)}[/]"),
    )


def quantized(console: Console, made: Quantized, spec: IndexerQSpec, source: Path, target: Path) -> None:
    """Print what was written where, what made it in which layout, and how to check it."""
    for name, tensor in made.tensors.items():
        console.print(f"{name:12} {tuple(tensor.shape)!s:18} {str(tensor.dtype).removeprefix('torch.')}")
    console.print(f"By {made.backend} on {made.target}, in the layout {options(spec)}.", soft_wrap=True)
    console.print(f"Written to {target}", soft_wrap=True)
    check = shlex.join(("iq-ops", "verify", str(target), "--inputs", str(source)))
    console.print(f"Check it: {check}", soft_wrap=True)


def _saved(before: int, after: int) -> str:
    return f"[bold]{after}[/]: {1 - after / before:.1%} saved"


def doctor_report(found: Mapping[str, Any]) -> RenderableType:
    """Facts, backends, what a call takes, problems."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(found):
        facts.add_row(name, value)
    blocks: list[RenderableType] = [facts]
    told: set[str] = set()
    if isinstance(found["backends"], list):
        table = _table("backend", "package", "version", "ABI", "state", "")
        for backend in found["backends"]:
            mark = {"ready": _GOOD, "absent": "[dim]-[/]"}.get(backend["state"], _BAD)
            abi = ", ".join(sorted({str(number) for number in backend["abi"].values()}))
            told.add(f"{backend['name']}: {backend['reason']}")
            details = [backend["reason"] or "", *(f"{key}: {value}" for key, value in backend["environment"].items())]
            table.add_row(
                f"[bold]{escape(backend['name'])}[/]", escape(backend["distribution"]), backend["version"] or "", abi,
                f"{mark} {backend['state']}", escape("\n".join(filter(None, details))),
            )  # fmt: skip
        blocks += ["", table]
    if isinstance(found["calls"], list):
        table = _table("a DeepSeek-V4 call on", "format", "takes", "and not")
        for call in found["calls"]:
            answers = [f"{name}: {reason}" for name, reason in call.get("refused", {}).items()]
            refused = "\n".join(answer for answer in answers if answer not in told)  # the table above has the rest
            table.add_row(
                call["device"], call["format"], f"[bold]{call.get('takes') or 'nothing'}[/]",
                escape(refused or call.get("error", "")),
            )  # fmt: skip
        blocks += ["", table]
    problems = found["problems"] if isinstance(found["problems"], list) else [str(found["problems"])]
    blocks.append("")
    if problems:
        blocks += [Text.from_markup(f"{_WARN} {escape(problem)}") for problem in problems]
    else:
        blocks.append(Text.from_markup(f"{_GOOD} No problem found."))
    return Group(*blocks)


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    def show(name: str, form: Any) -> str:
        value = found[name]
        if isinstance(value, dict) and "error" in value:
            return f"[red]probe failed: {escape(value['error'])}[/]"
        return str(form(value))

    yield "iq-ops", show("iq_ops", lambda v: f"{v['version']}  [dim]{escape(v['location'])}[/]")
    yield "Python", show("python", lambda v: f"{v['version']}  [dim]{escape(v['executable'])}, {v['platform']}[/]")
    yield "PyTorch", show("torch", lambda v: f"{v['version']}  [dim]{_cuda(v)}[/]")
    yield "NVIDIA driver", show("driver", lambda v: v or "[dim]none found[/]")
    yield "GPUs", show("devices", lambda v: "\n".join(_device(device) for device in v) or "[dim]none[/]")
    yield "kernel cache", show("cache", _cache)
    yield (
        "environment",
        show(
            "environment",
            lambda v: (
                "\n".join(f"{key}={escape(x)}  [dim]{doctor.VARIABLES[key]}[/]" for key, x in v.items())
                or "[dim]no override is set[/]"
            ),
        ),
    )


def _cuda(torch: Mapping[str, Any]) -> str:
    built = f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}" if torch["hip"] else "the CPU alone"
    return f"built for {built}, {'sees a GPU' if torch['cuda_available'] else 'sees no GPU'}"


def _device(device: Mapping[str, Any]) -> str:
    return (
        f"{device['index']}: {escape(device['name'])}  {device['target']}  "
        f"[dim]{device['memory_gib']} GiB, {device['multiprocessors']} multiprocessors[/]"
    )


def _cache(cache: Mapping[str, Any]) -> str:
    if not cache["enabled"]:
        state = "off (IQ_KERNELS_CACHE=0)"
    elif not cache["exists"]:
        state = "not there yet, " + ("can be made" if cache["writable"] else "[red]and cannot be made[/]")
    else:
        state = f"{cache['files']:,} files, {cache['bytes']:,} bytes" + (
            "" if cache["writable"] else ", [red]read-only[/]"
        )
    return f"{escape(cache['folder'])}  [dim]{state}[/]"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"
