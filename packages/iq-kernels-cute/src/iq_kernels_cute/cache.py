"""Compiled kernels, each compiled once: in memory, then on disk as the object file, loaded in milliseconds.

An entry's name digests everything that could change it; its last 32 bytes are the SHA-256 of the rest. It is written
under another name and renamed, so that a reader sees all of it or nothing, and one that does not load is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import _abi, toolchain
from .indexer_q.config import Variant

SYMBOL = "iq_kernel"  # the exported function's name in every object
DIGEST_BYTES = 32

_kernels: dict[Variant, Callable[..., Any]] = {}
_built = 0  # kernels compiled or loaded by this process
_warned = False
_lock = threading.RLock()  # the compiler is not re-entrant: one compile at a time


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)  # another thread may hold the parent's lock


class CompileError(RuntimeError):
    """The compiler refused a variant; the message carries the compiler's own."""


def get(variant: Variant) -> Callable[..., Any]:
    """The kernel of `variant`: from memory, from disk, or compiled now. Raises CompileError."""
    kernel = _kernels.get(variant)
    if kernel is not None:
        return kernel
    with _lock:
        if variant not in _kernels:
            _kernels[variant] = _from_disk(variant) or _from_compiler(variant)
            _count()
        return _kernels[variant]


def fill(variant: Variant) -> None:
    """Put the kernel on disk without loading it, for a machine that has the GPU. Raises CompileError, RuntimeError."""
    path = entry_path(variant)
    if path is None:
        raise RuntimeError("IQ_KERNELS_CACHE=0 turns the disk cache off, so there is nothing to fill.")
    with _lock:
        if _read_entry(path) is None:
            if not _write_entry(path, _compile(variant)):
                raise RuntimeError(
                    f"the kernel cache folder {path.parent} cannot be written; set IQ_KERNELS_CACHE_DIR."
                )
            _count()


def count() -> int:
    """Kernels compiled or loaded so far in this process."""
    return _built


def folder() -> Path | None:
    """The folder of the disk cache; None where IQ_KERNELS_CACHE=0 turns it off."""
    if os.environ.get("IQ_KERNELS_CACHE") == "0":
        return None
    chosen = os.environ.get("IQ_KERNELS_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iq-kernels"


def entry_path(variant: Variant) -> Path | None:
    """Where the kernel of `variant` is kept on disk; None where the disk cache is off."""
    place = folder()
    if place is None:
        return None
    parts = (repr(variant), str(_abi.OPS[variant.op].version), *_toolchain(), sources_digest())
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return place / f"{variant.op}-{variant.arch}-{digest}.o"


@lru_cache(maxsize=1)
def _toolchain() -> tuple[str, ...]:
    versions = (f"{name} {toolchain.version(name)}" for name in toolchain.DISTRIBUTIONS)
    return (*versions, f"python {sys.version_info.major}.{sys.version_info.minor}", sys.platform, platform.machine())


@lru_cache(maxsize=1)
def sources_digest() -> str:
    """SHA-256 of this package's Python sources: a change of the code makes new entries."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _count() -> None:
    global _built
    _built += 1


def _from_disk(variant: Variant) -> Callable[..., Any] | None:
    path = entry_path(variant)
    if path is None or _read_entry(path) is None:
        return None
    try:
        return _load(path)
    except Exception:  # whatever the loader says of a whole entry, compiling anew is the answer
        _delete(path)
        return None


def _from_compiler(variant: Variant) -> Callable[..., Any]:
    content = _compile(variant)
    path = entry_path(variant)
    if path is not None and _write_entry(path, content):
        return _load(path)
    with tempfile.TemporaryDirectory() as place:
        temporary = Path(place) / "kernel.o"
        temporary.write_bytes(content)
        return _load(temporary)


def _compile(variant: Variant) -> bytes:
    """The object file of `variant`."""
    problem = toolchain.problem()
    if problem is not None:
        raise CompileError(problem)
    from .indexer_q.compiling import compile_variant

    try:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "kernel.o"
            compile_variant(variant).export_to_c(str(path), SYMBOL, export_only_tvm_ffi_symbols=True)
            return path.read_bytes()
    except Exception as error:
        raise CompileError(f"CuTeDSL could not compile {variant}: {type(error).__name__}: {error}") from error


def _load(path: Path) -> Callable[..., Any]:
    runtime = toolchain.module("cutlass.cute.runtime")
    function: Callable[..., Any] = getattr(runtime.load_module(str(path), enable_tvm_ffi=True), SYMBOL)
    return function


def _read_entry(path: Path) -> bytes | None:
    """The object in an entry; None if there is none, or a damaged one, which is deleted."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    body, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    if body and hashlib.sha256(body).digest() == digest:
        return body
    _delete(path)
    return None


def _write_entry(path: Path, content: bytes) -> bool:
    """Write an entry whole, or warn once and return False."""
    global _warned
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content + hashlib.sha256(content).digest())
        temporary.replace(path)
    except OSError as error:
        _delete(temporary)
        if not _warned:
            _warned = True
            warnings.warn(
                f"the kernel cache folder {path.parent} cannot be written ({error}); kernels are compiled again in "
                "every process. Set IQ_KERNELS_CACHE_DIR to a writable folder, or IQ_KERNELS_CACHE=0 to silence this.",
                RuntimeWarning,
                stacklevel=2,
            )
        return False
    return True


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
