"""What iq-ops asks of this backend: who it is, whether it can run a request, and its functions. Cheap to import."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

from . import _abi
from ._errors import CompileError
from ._version import __version__
from .indexer_q import config

__all__ = [
    "CompileError",
    "compile_count",
    "describe",
    "environment",
    "load",
    "warmup_jobs",
    "why_not",
]

MIN_TRITON = (3, 5)


def describe() -> _abi.Description:
    """Return the backend's name, version, preference and the ABI of each operation."""
    return _abi.Description(
        backend="triton",
        distribution="iq-kernels-triton",
        version=__version__,
        preference=100,
        abi={name: op.version for name, op in _abi.OPS.items()},
    )


def why_not(request: _abi.Request) -> str | None:
    """Return None if this backend can run the request, else one sentence that says why not."""
    if request.op not in _abi.OPS:
        return f"this version has no kernel for {request.op}."
    if request.device_type == "cpu" and not _env_flag("TRITON_INTERPRET"):
        return (
            "Triton runs on the CPU only in its interpreter, for tests: set TRITON_INTERPRET=1 before importing triton."
        )
    if request.device_type not in ("cpu", "cuda"):
        return f"Triton does not reach {request.device_type!r} devices here."
    problem = _why_not_target(request.target) or _import_problem()
    if problem is not None:
        return problem
    interpreted = _compiling().INTERPRETED
    if interpreted and request.device_type != "cpu":
        return "TRITON_INTERPRET was set when the kernels were imported, so they run on the CPU alone."
    if not interpreted and request.device_type == "cpu":
        return "the kernels were imported without TRITON_INTERPRET=1, so they are compiled for a GPU."
    elements = math.prod(request.tensors["q"].shape)
    if elements > config.MAX_ELEMENTS:
        return f"T * H * D = {elements} may exceed the {config.MAX_PROGRAMS} programs of one launch."
    return None


def load(op: str) -> Callable[..., None]:
    """Return the raw function of an operation; KeyError for an unknown one."""
    if op not in _abi.OPS:
        raise KeyError(op)
    function: Callable[..., None] = getattr(importlib.import_module(f"{__package__}.indexer_q.launch"), op)
    return function


def warmup_jobs(workload: _abi.Workload) -> list[tuple[str, Callable[[], None]]]:
    """Return (label, job) pairs: each compiles one variant if it is not compiled; together they serve every T.

    None for a target that `why_not` refuses; without a device, none for a CUDA one outside `config.AHEAD_SM` either.
    """
    if workload.target == "cpu" or _why_not_target(workload.target) or _compiling().INTERPRETED:
        return []
    capability = config.cuda_capability(workload.target)
    if workload.device_index is None and capability and capability not in config.AHEAD_SM:
        return []
    return [
        (variant.label, functools.partial(_warm, variant, workload.device_index))
        for variant in config.all_variants(workload)
    ]


def compile_count() -> int:
    """Kernels compiled, or loaded from the disk cache, so far in this process."""
    import sys

    module = sys.modules.get(f"{__package__}.indexer_q.compiling")
    return 0 if module is None else int(module.compile_count())


def environment() -> dict[str, str]:
    """Return what decides how this backend behaves: versions, cache folder, overrides."""
    import triton

    facts = {"triton": str(triton.__version__), "cache": str(triton.knobs.cache.dir)}
    names = ("TRITON_INTERPRET", "TRITON_CACHE_DIR", "TRITON_ALWAYS_COMPILE", "TRITON_PTXAS_PATH")
    facts.update({name: os.environ[name] for name in names if name in os.environ})
    return facts


def _warm(variant: config.Variant, device_index: int | None) -> None:
    compiling = _compiling()
    if device_index is None:
        compiling.compile_variant(variant, None)
        return
    import torch

    with torch.cuda.device(device_index):
        compiling.compile_variant(variant, device_index)


def _why_not_target(target: str) -> str | None:
    capability = config.cuda_capability(target)
    if capability:
        return (
            None if capability >= config.MIN_SM else f"{target} is older than sm_{config.MIN_SM}, the oldest supported."
        )
    if target == "cpu" or target in config.AMD_TARGETS:
        return None
    supported = ", ".join((f"sm_{config.MIN_SM} and newer", *config.AMD_TARGETS))
    return f"this version was never compiled for {target}; it supports {supported}."


@functools.lru_cache(maxsize=1)
def _import_problem() -> str | None:
    """Say why triton or the kernels cannot be imported, once: an import that failed is not tried again."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed."
    try:
        import triton

        version = str(triton.__version__)
        if tuple(int(part) for part in version.split(".")[:2]) < MIN_TRITON:
            return f"triton {version} is older than {'.'.join(map(str, MIN_TRITON))}, the oldest supported."
        _compiling()
    except Exception as error:
        return f"triton cannot be imported: {type(error).__name__}: {error}."
    return None


def _compiling() -> Any:
    return importlib.import_module(f"{__package__}.indexer_q.compiling")


def _env_flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "on", "yes", "y")
