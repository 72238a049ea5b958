"""The `iq-ops` command: parses arguments, calls the module of each command, prints what it returns.

Exit codes: 0 done, 1 a dump that does not follow the contract or a command that failed, 2 a usage or file error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from . import specs
from ._version import __version__

_DUMP_HELP = """
**Inputs**: `positions` (T,) int32 or int64, `q` (T, H, D) bfloat16 before its rotation, `cos_sin_cache` (P, R) float32
or bfloat16, `weights` (T, H).

**Outputs**: `q_fp8` (T, H, D) float8_e4m3fn or uint8, or `q_packed` (T, H, D/2) uint8 and `q_scale`, int32 (T, H) or
uint8 (T, H, D/32); and `weights_out` (T, H) float32 or bfloat16. An engine that keeps its FP8 scale apart may add it as
`q_scale` (T, H) float32.

Metadata, all optional: `weights_softmax_scale`, `weights_head_scale` (else D\\*\\*-0.5 and H\\*\\*-0.5), `rope_style`,
`rope_at`, `hadamard` (`true` or `false`).
"""

app = typer.Typer(
    help="The indexer query of DeepSeek-style sparse attention, quantized to FP8 or MXFP4.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)


class Format(str, Enum):
    """The two output formats."""

    FP8 = "fp8"
    MXFP4 = "mxfp4"


class RopeStyle(str, Enum):
    """The contract's rotary styles."""

    INTERLEAVED = "interleaved"
    NEOX = "neox"


class RopePlace(str, Enum):
    """The contract's rotary places."""

    TAIL = "tail"
    HEAD = "head"


def _known_model(name: str | None) -> str | None:
    if name is not None and name not in specs.MODELS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(specs.MODELS)}")
    return name


_ModelOption = typer.Option("--model", callback=_known_model, help=f"One of {', '.join(specs.MODELS)}.")
_SoftmaxScale = Annotated[float | None, typer.Option(help="Overrides the file's metadata and D\\*\\*-0.5.")]
_HeadScale = Annotated[float | None, typer.Option(help="Overrides the file's metadata and (model's heads)\\*\\*-0.5.")]


def main() -> None:
    """Run the command line; the entry point of the `iq-ops` script."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a mark or a path that the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"iq-ops {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False) -> None:
    """Tell what is installed, which backends are usable and why not, and what a call would take. Never fails."""
    from . import doctor as doctor_module

    with contextlib.redirect_stdout(sys.stderr):  # a backend that prints as it is imported would spoil the JSON
        found = doctor_module.report()
    if as_json:
        typer.echo(json.dumps(found, indent=2, default=str))
        return
    from . import _render

    Console().print(_render.doctor_report(found))


@app.command()
def demo(plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw it too.")] = None) -> None:
    """Quantize a DeepSeek-V4 batch in both formats; show bytes saved, signal-to-noise and top-k recall."""
    from . import _render, demo_plot
    from . import demo as demo_module

    console = Console()
    with _failing_with(1, RuntimeError, ValueError):
        if plot is not None:
            demo_plot.require()
        with console.status("Quantizing and ranking …"):
            result = demo_module.run()
        console.print(_render.demo_result(result))
    if plot is not None:
        with _failing_with(2, OSError):
            demo_plot.draw(result, plot)
        console.print(f"Drawn in {plot}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def quantize(
    source: Annotated[Path, typer.Argument(metavar="IN.safetensors", help="positions, q, cos_sin_cache, weights")],
    target: Annotated[Path, typer.Argument(metavar="OUT.safetensors", help="The contract's outputs go here.")],
    fmt: Annotated[Format, typer.Option("--format", help="The output format.")],
    model: Annotated[str, _ModelOption] = "deepseek-v4",
    softmax_scale: _SoftmaxScale = None,
    head_scale: _HeadScale = None,
) -> None:
    """Quantize real tensors on the best backend.

    `iq-ops verify OUT --inputs IN` checks the result, and shows the names that the files use.
    """
    from . import dumps
    from . import quantize as quantize_module

    if os.path.realpath(source) == os.path.realpath(target):
        raise typer.BadParameter(
            "it is the input file, which would be lost: name another", param_hint="OUT.safetensors"
        )
    chosen = specs.MODELS[model]
    with _failing_with(2, dumps.DumpError):
        inputs = dumps.read_inputs(dumps.read(source), softmax_scale, head_scale, chosen.num_heads)
        dumps.check_model(source, inputs, model)
        with _failing_with(1, RuntimeError, ValueError), _progress() as step:
            tensors = quantize_module.quantize(
                inputs, fmt.value, chosen.spec, lambda done, total: step("Quantizing", done, total)
            )
        dumps.write(target, tensors, dumps.metadata_of(fmt.value, inputs, chosen.spec))
    console = Console(highlight=False, markup=False)
    for name, tensor in tensors.items():
        console.print(f"{name:12} {tuple(tensor.shape)!s:18} {str(tensor.dtype).removeprefix('torch.')}")
    console.print(f"Written to {target}", soft_wrap=True)


@app.command(epilog=_DUMP_HELP)
def verify(
    dump: Annotated[Path, typer.Argument(metavar="DUMP.safetensors", help="An engine's outputs, and its inputs.")],
    inputs_file: Annotated[
        Path | None, typer.Option("--inputs", metavar="IN.safetensors", help="Take the inputs from this file.")
    ] = None,
    model: Annotated[str | None, _ModelOption] = None,
    rope_style: Annotated[RopeStyle | None, typer.Option(help="Demand this rotary style.")] = None,
    rope_at: Annotated[RopePlace | None, typer.Option(help="Demand this rotary place.")] = None,
    hadamard: Annotated[bool | None, typer.Option(help="Demand a Hadamard transform, or none.")] = None,
    softmax_scale: _SoftmaxScale = None,
    head_scale: _HeadScale = None,
) -> None:
    """Say whether an engine's outputs follow the contract; if not, which known convention they follow, and where.

    Without `--model` or options any rotary layout and Hadamard of the contract will do, and the one found is named.
    Exit code 0: every byte is the contract's. 1: not. 2: the file or the command line is wrong.
    """
    from . import _render_verify, dumps
    from . import verify as verify_module

    with _failing_with(2, dumps.DumpError):
        file = dumps.read(dump)
        if inputs_file is not None:
            file = dumps.merged(file, dumps.read(inputs_file))
        heads = specs.MODELS[model].num_heads if model is not None else None
        inputs = dumps.read_inputs(file, softmax_scale, head_scale, heads)
        if model is not None:
            dumps.check_model(file.path, inputs, model)
        contents = dumps.read_dump(file, inputs)
    given = {
        "rope_style": rope_style and rope_style.value,
        "rope_at": rope_at and rope_at.value,
        "hadamard": hadamard,
    }
    asked = {name: value for name, value in given.items() if value is not None}
    declared = {**(dumps.options_of(specs.MODELS[model].spec) if model is not None else {}), **asked}
    with _progress() as step:
        found = verify_module.verify(contents, declared, step)
    Console(highlight=False).print(_render_verify.verdict(contents, found))
    raise typer.Exit(0 if found.follows else 1)


@app.command()
def warmup(
    model: Annotated[str, _ModelOption] = "deepseek-v4",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks that divide the heads.")] = 1,
    arch: Annotated[
        str | None, typer.Option(help="Compile for this architecture, as sm_100a, into the disk cache: no GPU needed.")
    ] = None,
) -> None:
    """Compile every kernel that a model's calls can take, so that serving compiles nothing."""
    import torch

    import iq_ops

    chosen = specs.MODELS[model]
    if chosen.num_heads % tp:
        raise typer.BadParameter(f"{tp} does not divide the {chosen.num_heads} heads of {model}", param_hint="--tp")
    with _failing_with(1, RuntimeError, ValueError):
        compiled = iq_ops.warmup(
            chosen.num_heads // tp, chosen.head_dim, chosen.rope_dim, chosen.formats,
            spec=chosen.spec, arch=arch, progress=True,
        )  # fmt: skip
    noun = "kernel" if compiled == 1 else "kernels"
    done = f"{compiled} {noun} compiled or loaded" if compiled else "Nothing to compile"
    typer.echo(f"{done} for {model} with {chosen.num_heads // tp} heads.")
    if not compiled and arch is None:
        from . import _warmup

        reasons = _warmup.why_nothing(
            chosen.num_heads // tp, chosen.head_dim, chosen.rope_dim, chosen.formats[0], chosen.spec
        )
        for backend, reason in reasons.items():
            typer.echo(f"  {backend}: {reason}")
        if not torch.cuda.is_available():
            typer.echo("PyTorch sees no GPU here. To fill the disk cache for one elsewhere: --arch, as --arch sm_90.")


@contextlib.contextmanager
def _failing_with(code: int, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors of these types into their message on stderr and an exit code."""
    try:
        yield
    except errors as error:
        Console(stderr=True, highlight=False).print("error:", str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(code) from error


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr that goes away at the end; yields the function to call with label, done and total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def step(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        yield step


def _show_warning(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    Console(stderr=True, highlight=False).print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)
