"""Write what the pages take from the code: docs/abi.md, docs/deprecations.md and the pictures.

`python -m docs.generate`, from the root of the repository. A test says when what is committed is not current.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path

from docs import draw
from iq_ops import _abi, _deprecated

DOCS = Path(__file__).parent
NOTE = "<!-- Written by `python -m docs.generate`; change the code that it is made from. -->"

ABI_PAGE = """{note}

# The ABI

What iq-ops and the kernel packages have agreed on. `_abi.py` says it as data, and is the same file, byte for byte, in
every package. At load, iq-ops compares the version of each operation that they share; where the two differ it passes
the backend over, and `iq-ops doctor` names the pip command that mends it.

## Operations

Raw functions take keywords only and return None. The caller allocates what is written. T tokens, H heads, D head dim, R
rotary dim, P rows of the cache.

{operations}
Both take two Python floats, {scalars}, and three options:

{options}

D is one of {head_dims}; R is a multiple of {multiple}, from {multiple} to D; {block} dims share one MXFP4 scale. What
the bytes mean, the [contract](contract.md) says.

## Messages

A provider is a module behind the entry point group `{group}`; [Adding a kernel](adding-a-kernel.md) says what it has.
It and iq-ops exchange these. Each package has its own copy of the classes, so they are told by their fields, never by
`isinstance`.

{messages}"""

DEPRECATIONS_PAGE = """{note}

# Deprecations

Old names keep working and give the same bits. They warn once a call site (`DeprecationWarning`, at the caller's line,
under `torch.compile` too) and name the replacement and the version that removes them. A name stays for two minor
releases at least. The first release has some already: code that called these kernels before they were a package goes on
as it is.

{names}

The two functions take buffers of T rows or more and write the first T. The FP8 ones take a float8_e4m3fn view or uint8.
A buffer of a wrong dtype, shape or layout is an error, and then nothing is written.

To find the call sites, run your program with `python -W error::DeprecationWarning`.
"""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows))


def abi_page() -> str:
    """What kernel packages and iq-ops have agreed on, from `_abi.py`."""
    options = (
        (f"`{name}`", ", ".join(f"`{value!r}`" for value in values), f"`{values[0]!r}`")
        for name, values in _abi.OPTIONS.items()
    )
    return ABI_PAGE.format(
        note=NOTE,
        operations="\n".join(_operation(op) for op in _abi.OPS.values()),
        scalars=" and ".join(f"`{name}`" for name in _abi.SCALARS),
        options=table(("option", "values", "default"), options),
        head_dims=", ".join(map(str, _abi.HEAD_DIMS)),
        multiple=_abi.ROPE_DIM_MULTIPLE,
        block=_abi.MX_BLOCK,
        group=_abi.ENTRY_POINT_GROUP,
        messages="\n".join(map(_message, (_abi.Description, _abi.Request, _abi.TensorFacts, _abi.Workload))),
    )


def _operation(op: _abi.Op) -> str:
    rows = (
        (
            f"`{tensor.name}`",
            f"({', '.join(tensor.shape)}{',' if len(tensor.shape) == 1 else ''})",
            ", ".join(tensor.dtypes),
            "yes" if tensor.output else "",
            "contiguous" if tensor.output else "free, the last 1" if tensor.last_dim_contiguous else "free",
        )
        for tensor in op.tensors
    )
    columns = ("argument", "shape", "dtype", "written", "strides")
    return f"### {op.name}, version {op.version}\n\n{table(columns, rows)}\n"


def _message(kind: type) -> str:
    rows = ((f"`{field.name}`", f"`{field.type}`".replace("|", "\\|")) for field in dataclasses.fields(kind))
    return f"### {kind.__name__}\n\n{inspect.cleandoc(kind.__doc__ or '')}\n\n{table(('field', 'type'), rows)}\n"


def deprecations_page() -> str:
    """The table of old names, from `_deprecated.py`."""
    rows = ((f"`{row.name}`", f"`{row.replacement}`", row.since, row.removed_in) for row in _deprecated.TABLE.values())
    return DEPRECATIONS_PAGE.format(note=NOTE, names=table(("in `iq_ops`", "use", "since", "removed in"), rows))


def files() -> dict[Path, str]:
    """Every generated file, by path."""
    pages = {DOCS / "abi.md": abi_page(), DOCS / "deprecations.md": deprecations_page()}
    return pages | {DOCS / "pictures" / name: drawn() for name, drawn in draw.PICTURES.items()}


def main() -> None:
    """Write them."""
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
