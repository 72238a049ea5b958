"""safetensors files as the command line reads and writes them: with the names of tensors, and errors that say why."""

from __future__ import annotations

import contextlib
import os
import tempfile
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
    """Read a whole safetensors file; DumpError if it is missing, of another size than it says, or something else."""
    import safetensors

    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        what = "a folder, and no regular file" if os.path.isdir(path) else "no regular file"
        raise DumpError(f"{path}: {what if os.path.exists(path) else 'no such file'}.")
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
            why = f"its size of {size:,} bytes does not match its header: truncated, or with bytes of no tensor"
        else:
            why = f"no safetensors file, or damaged ({size:,} bytes)"
        raise DumpError(f"{path}: {why}. The reader said: {error}") from error
    return _without_aliases(File(path, tensors, metadata))


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file through a temporary one, so that no reader sees half of it. DumpError if it cannot.

    A link is followed. A folder, a device or a pipe is refused: the temporary file would take its place. The
    permissions are those that `open` would leave: of the file that was there, else what the umask allows.
    """
    import safetensors.torch

    check_target(path)
    target = Path(os.path.realpath(path))
    temporary = None
    try:
        mode = _mode(target)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
        os.close(handle)
        safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, dict(metadata))
        os.chmod(temporary, mode)
        os.replace(temporary, target)
        temporary = None
    except (safetensors.SafetensorError, OSError) as error:
        raise DumpError(f"{path}: cannot be written: {error}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def check_target(path: Path) -> None:
    """Raise DumpError where `write` could not write, as far as can be told before."""
    target = Path(os.path.realpath(path))
    if os.path.exists(target) and not os.path.isfile(target):
        raise DumpError(f"{path}: cannot be written: it is there already, and no regular file.")
    if not os.path.isdir(target.parent):
        what = "is no folder" if os.path.exists(target.parent) else "does not exist: make it first"
        raise DumpError(f"{path}: cannot be written: the folder {target.parent} {what}.")


def _mode(target: Path) -> int:
    """The permissions that `open(target, "w")` would leave; mkstemp's are for the owner alone."""
    if os.path.exists(target):
        return target.stat().st_mode & 0o777
    umask = os.umask(0o077)  # it can be read only by setting it
    os.umask(umask)
    return 0o666 & ~umask


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
