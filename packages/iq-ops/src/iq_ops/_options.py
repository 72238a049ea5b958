"""The options that several commands of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from . import specs

FORMATS = ("fp8", "mxfp4")
FILES = """
**Inputs**: `positions` (T,) int32 or int64, `q` (T, H, D) bfloat16 before its rotation, `cos_sin_cache` (P, R) float32
or bfloat16, `weights` (T, H); the names of the public functions, as `index_q`, will do.

**Outputs**: `q_fp8` (T, H, D) float8_e4m3fn or uint8, or `q_packed` (T, H, D/2) uint8 and `q_scale`, int32 (T, H) or
uint8 (T, H, D/32); and `weights_out` (T, H) float32 or bfloat16. An engine that keeps its FP8 scale apart may add it as
`q_scale` (T, H) float32.

Metadata, all optional: `weights_softmax_scale`, else D\\*\\*-0.5; `weights_head_scale`, else (the heads of `--model`,
else of q)\\*\\*-0.5; `rope_style`, `rope_at`, `hadamard` (`true` or `false`).
"""


def _one_of(*names: str) -> Callable[[str | None], str | None]:
    def check(name: str | None) -> str | None:
        if name is not None and name not in names:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(names)}")
        return name

    return check


_MODELS = ", ".join(specs.MODELS)
_HEADS = "(the heads of --model, else of q)\\*\\*-0.5"

MODEL = typer.Option("--model", metavar="NAME", callback=_one_of(*specs.MODELS), help=f"One of {_MODELS}.")
Format = Annotated[
    str, typer.Option("--format", metavar="|".join(FORMATS), callback=_one_of(*FORMATS), help="The output format.")
]
RopeStyle = Annotated[
    str | None, typer.Option(metavar="NAME", callback=_one_of("interleaved", "neox"), help="interleaved or neox.")
]
RopePlace = Annotated[
    str | None, typer.Option(metavar="NAME", callback=_one_of("tail", "head"), help="Rotary part: tail or head.")
]
Hadamard = Annotated[bool | None, typer.Option(metavar="", help="A Hadamard transform, or none.")]
SoftmaxScale = Annotated[float | None, typer.Option(help="Overrides the file's metadata, and D\\*\\*-0.5.")]
HeadScale = Annotated[float | None, typer.Option(help=f"Overrides the file's metadata, and {_HEADS}.")]


def asked(rope_style: str | None, rope_at: str | None, hadamard: bool | None) -> dict[str, str | bool]:
    """Return the layout options that were given, as `verify` and `_metadata.layout` take them."""
    given = {"rope_style": rope_style, "rope_at": rope_at, "hadamard": hadamard}
    return {name: value for name, value in given.items() if value is not None}
