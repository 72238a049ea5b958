"""safetensors files as the command line reads and writes them: with the names of tensors, and errors that say why."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from . import _checks
from .indexer import PUBLIC_NAMES

# What the public functions call the inputs -> the name in these files; either is read.
ALIASES = {PUBLIC_NAMES[name]: name for name in ("q", "cos_sin_cache", "weights")}


class DumpError(ValueError):
    """A file that cannot be used: missing, foreign, truncated, or without the tensors and dtypes it must have."""


@dataclass(frozen=True)
class File:
    """What a safetensors file holds: tensors by name, its metadata, and the names that `ALIASES` replaced."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)


def read(path: Path) -> File:
    """Read a whole safetensors file; DumpError if it is missing, truncated or something else."""
    import safetensors

    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        raise DumpError(f"{path}: no such file" + (" (a folder)." if os.path.isdir(path) else "."))
    try:
        with safetensors.safe_open(path, framework="pt") as handle:
            tensors = {name: handle.get_tensor(name) for name in list(handle.keys())}
            metadata = handle.metadata() or {}
    except (
        safetensors.SafetensorError,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RuntimeError,
    ) as error:
        size = path.stat().st_size
        if "not fully covered" in str(error) or "incomplete" in str(error).lower():
            why = f"truncated: its header promises more than its {size:,} bytes hold"
        else:
            why = f"no safetensors file, or damaged ({size:,} bytes)"
        raise DumpError(f"{path}: {why}. The reader said: {error}") from error
    return _without_aliases(File(path, tensors, metadata))


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file through a temporary one, so that no reader sees half of it. DumpError if it cannot.

    A link is followed. A folder, a device or a pipe is refused: the temporary file would take its place.
    """
    import safetensors.torch

    check_target(path)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(target.name + ".part")
    try:
        safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, dict(metadata))
        temporary.replace(target)
    except (safetensors.SafetensorError, OSError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise DumpError(f"{path}: cannot be written: {error}") from error


def check_target(path: Path) -> None:
    """Raise DumpError where `write` could not write, as far as can be told before."""
    target = Path(os.path.realpath(path))
    if os.path.exists(target) and not os.path.isfile(target):
        raise DumpError(f"{path}: cannot be written: it is there already, and no regular file.")
    if not os.path.isdir(target.parent):
        what = "is no folder" if os.path.exists(target.parent) else "does not exist: make it first"
        raise DumpError(f"{path}: cannot be written: the folder {target.parent} {what}.")


def _without_aliases(file: File) -> File:
    """The file with its inputs under their own names. DumpError where it has one under both."""
    aliases = {name: alias for alias, name in ALIASES.items() if alias in file.tensors}
    twice = [f"{name} and {alias}" for name, alias in aliases.items() if name in file.tensors]
    if twice:
        remedy = "leave one out: they are two names of one input."
        raise DumpError(
            _checks.describe_mismatch(f"{file.path}: inputs", "each under one name", ", ".join(twice), remedy)
        )
    tensors = {ALIASES.get(name, name): tensor for name, tensor in file.tensors.items()}
    return File(file.path, tensors, file.metadata, aliases)
