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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from . import _options, specs
from ._terminal import failing_with, progress, show_warning, warn
from ._version import __version__

if TYPE_CHECKING:
    from .dumps import Inputs
    from .files import File

app = typer.Typer(
    help="The indexer query of DeepSeek-style sparse attention, quantized to FP8 or MXFP4.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def main() -> None:
    """Run the command line; the entry point of the `iq-ops` script."""
    warnings.showwarning = show_warning
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
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of tables.")] = False,
) -> None:
    """Tell what is installed, which backends are usable and why not, and what a call would take. Never fails."""
    from . import doctor as doctor_module

    with contextlib.redirect_stdout(sys.stderr):  # a backend that prints as it is imported would spoil the JSON
        found = doctor_module.report()
    if as_json:
        typer.echo(json.dumps(found, indent=2, default=str))
        return
    from . import _render

    Console(emoji=False).print(_render.doctor_report(found))


@app.command()
def demo(plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw it too.")] = None) -> None:
    """Quantize a DeepSeek-V4 batch in both formats; show bytes saved, signal-to-noise and top-k recall."""
    from . import _render, demo_plot
    from . import demo as demo_module

    console = Console(emoji=False)
    with failing_with(1, RuntimeError, ValueError):
        if plot is not None:
            demo_plot.require()
        with console.status("Quantizing and ranking …"):
            result = demo_module.run()
        console.print(_render.demo_result(result))
    if plot is not None:
        with failing_with(2, OSError):
            demo_plot.draw(result, plot)
        console.print(f"Drawn in {plot}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def quantize(
    source: Annotated[Path, typer.Argument(metavar="IN.safetensors", help="positions, q, cos_sin_cache, weights")],
    target: Annotated[Path, typer.Argument(metavar="OUT.safetensors", help="The contract's outputs go here.")],
    fmt: _options.Format,
    model: Annotated[str | None, _options.MODEL] = None,
    rope_style: _options.RopeStyle = None,
    rope_at: _options.RopePlace = None,
    hadamard: _options.Hadamard = None,
    softmax_scale: _options.SoftmaxScale = None,
    head_scale: _options.HeadScale = None,
) -> None:
    """Quantize real tensors on the best backend.

    The layout is that of the options, else of `--model`, else of IN's metadata, else DeepSeek-V4's. `iq-ops verify OUT
    --inputs IN` checks the result, and `iq-ops verify --help` shows the names that the files use.
    """
    from . import _metadata, _render, files
    from . import quantize as quantize_module

    if os.path.realpath(source) == os.path.realpath(target):
        raise typer.BadParameter(
            "it is the input file, which would be lost: name another", param_hint="OUT.safetensors"
        )
    with failing_with(2, files.DumpError):
        file = files.read(source)
        files.check_target(target)
        spec = _metadata.layout(file, model, _options.asked(rope_style, rope_at, hadamard))
        inputs = _read_inputs(file, model, softmax_scale, head_scale)
        with failing_with(1, RuntimeError, ValueError), progress("Quantizing") as step:
            made = quantize_module.quantize(inputs, fmt, spec, lambda done, total: step("Quantizing", done, total))
        scales = (inputs.weights_softmax_scale, inputs.weights_head_scale)
        files.write(target, made.tensors, _metadata.written(fmt, scales, spec))
    for note in _metadata.assumed_head_scale((file,), inputs.q.shape[1], model, head_scale):
        warn(note)
    _render.quantized(Console(highlight=False, markup=False, emoji=False), made, spec, source, target)


@app.command(epilog=_options.FILES)
def verify(
    dump: Annotated[Path, typer.Argument(metavar="DUMP.safetensors", help="An engine's outputs, and its inputs.")],
    inputs_file: Annotated[
        Path | None, typer.Option("--inputs", metavar="FILE", help="Take the inputs from this file.")
    ] = None,
    model: Annotated[str | None, _options.MODEL] = None,
    rope_style: _options.RopeStyle = None,
    rope_at: _options.RopePlace = None,
    hadamard: _options.Hadamard = None,
    softmax_scale: _options.SoftmaxScale = None,
    head_scale: _options.HeadScale = None,
) -> None:
    """Say whether an engine's outputs follow the contract; if not, which known convention they follow, and where.

    What `--model`, the layout options or the file's metadata name is demanded. Without them any rotary layout and
    Hadamard of the contract will do, and the one found is named.
    Exit code 0: every byte is the contract's. 1: not. 2: the file or the command line is wrong.
    """
    from . import _metadata, _render_verify, dumps, files
    from . import verify as verify_module

    asked = _options.asked(rope_style, rope_at, hadamard)
    wanted = _metadata.wanted(model, asked)
    given = [
        name for name, value in zip(_metadata.SCALES, (softmax_scale, head_scale), strict=True) if value is not None
    ]
    with failing_with(2, files.DumpError):
        file = files.read(dump)
        source = file if inputs_file is None else files.read(inputs_file)
        inputs = _read_inputs(source, model, softmax_scale, head_scale, file)
        contents = dumps.read_dump(file, inputs, source)
        notes = _metadata.disagreements(file, source, {*wanted, *given})
        notes += _metadata.contradictions((file, source), model, asked)
    notes += _metadata.assumed_head_scale((file, source), inputs.q.shape[1], model, head_scale)
    with progress("Trying conventions") as step:
        found = verify_module.verify(contents, wanted, step)
    Console(highlight=False, emoji=False).print(_render_verify.verdict(contents, found, notes))
    raise typer.Exit(0 if found.follows else 1)


def _read_inputs(
    file: File, model: str | None, softmax_scale: float | None, head_scale: float | None, outputs: File | None = None
) -> Inputs:
    from . import dumps

    heads = None if model is None else specs.MODELS[model].num_heads
    inputs = dumps.read_inputs(file, softmax_scale, head_scale, heads, outputs)
    if model is not None:
        dumps.check_model(file.path, inputs, model)
    return inputs


@app.command()
def warmup(
    model: Annotated[str, _options.MODEL] = "deepseek-v4",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks that divide the heads.")] = 1,
    arch: Annotated[
        str | None, typer.Option(help="Compile for this architecture, as sm_100a, into the disk cache: no GPU needed.")
    ] = None,
) -> None:
    """Compile every kernel that a model's calls can take, so that serving compiles nothing."""
    import iq_ops

    from . import _ahead

    chosen = specs.MODELS[model]
    if chosen.num_heads % tp:
        raise typer.BadParameter(f"{tp} does not divide the {chosen.num_heads} heads of {model}", param_hint="--tp")
    heads = chosen.num_heads // tp
    if arch is not None:
        problem = _ahead.unknown_arch(arch)
        if problem is None and (reasons := _ahead.refusals(chosen, heads, arch)):
            problem = f"no backend compiles for {arch} here: " + "; ".join(
                f"{k}: {v.rstrip('.')}" for k, v in reasons.items()
            )
        if problem is not None:
            raise typer.BadParameter(problem, param_hint="--arch")
    before = _ahead.counts()
    with failing_with(1, RuntimeError, ValueError):
        compiled = iq_ops.warmup(
            heads, chosen.head_dim, chosen.rope_dim, chosen.formats, spec=chosen.spec, arch=arch, progress=True
        )
    for line in _ahead.report(model, heads, arch, compiled, before):
        typer.echo(line)
