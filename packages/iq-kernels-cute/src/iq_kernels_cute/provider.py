"""What iq-ops asks this package: who it is, whether it can run a request, its functions, what to compile ahead.

Importing this module imports neither cutlass nor torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from . import _abi, cache, toolchain
from ._version import __version__
from .cache import CompileError as CompileError
from .indexer_q import config, layout

OLDEST = 80  # compute capability: bf16 arithmetic and cp.async of Ampere
PREFERENCE = 200


def describe() -> _abi.Description:
    """Name, version, preference and ABI of this backend."""
    abi = {name: op.version for name, op in _abi.OPS.items()}
    return _abi.Description("cute", "iq-kernels-cute", __version__, PREFERENCE, abi)


def why_not(request: _abi.Request) -> str | None:
    """Why the kernels cannot run `request`, in one sentence; None if they can."""
    if request.device_type != "cuda":
        return f"CuTeDSL kernels run on CUDA devices, and the tensors are on {request.device_type}."
    reason = _target_problem(request.target) or toolchain.problem() or _arch_problem(request.target)
    if reason is not None:
        return reason
    found = layout.problem(request.op, request.tensors)
    if found is None:
        return None
    argument, expected, actual, remedy = found
    return f"{argument} needs {expected}, and has {actual}; {remedy}"


def load(op: str) -> Callable[..., None]:
    """The raw function of `op`; KeyError if there is none."""
    from .indexer_q import launch

    functions: dict[str, Callable[..., None]] = {
        "indexer_q_fp8": launch.indexer_q_fp8,
        "indexer_q_mxfp4": launch.indexer_q_mxfp4,
    }
    return functions[op]


def bind(request: _abi.Request) -> Callable[..., None] | None:
    """What runs calls that differ from `request`, which has run, in addresses alone: run(*inputs, *scales, *outputs).

    None where nothing is launched, as for no tokens.
    """
    from .indexer_q import launch

    return launch.bound(request)


def warmup_jobs(workload: _abi.Workload) -> list[tuple[str, Callable[[], None]]]:
    """One (label, thunk) a kernel that calls of `workload` can run; empty where it can run none.

    With a device, a thunk also launches the kernel once there. Without one it fills the disk cache.
    """
    if _target_problem(workload.target) or toolchain.problem() or _arch_problem(workload.target):
        return []
    jobs: list[tuple[str, Callable[[], None]]] = []
    for variant in config.variants(workload):
        if workload.device_index is None:
            thunk = partial(cache.fill, variant)
        else:
            thunk = partial(_warm, variant, workload.device_index)
        jobs.append((_label(variant), thunk))
    return jobs


def compile_count() -> int:
    """Kernels compiled or loaded so far in this process."""
    return cache.count()


def environment() -> dict[str, str]:
    """Versions, the cache folder and what is wrong, for a report of the installation."""
    facts = {name: toolchain.version(name) or "not installed" for name in toolchain.DISTRIBUTIONS}
    facts["iq-kernels-cute"] = __version__
    facts["CuTeDSL"] = toolchain.problem() or "works"
    facts["kernel cache"] = str(cache.folder() or "off (IQ_KERNELS_CACHE=0)")
    for name in ("IQ_KERNELS_CACHE_DIR", "IQ_KERNELS_CACHE", "CUTE_DSL_ARCH"):
        if name in os.environ:
            facts[name] = os.environ[name]
    return facts


def _warm(variant: config.Variant, device_index: int) -> None:
    from .indexer_q import launch

    launch.warm(variant, device_index)


def _label(v: config.Variant) -> str:
    layout_name = "dense" if v.dense else "strided"
    return f"{v.op} {v.arch} {v.vector}x{v.chunks} dims, {v.heads_per_thread} heads a lane, {layout_name}"


def _target_problem(target: str) -> str | None:
    if not target.startswith("sm_"):
        return f"CuTeDSL compiles for NVIDIA GPUs, and the target is {target}."
    try:
        capability = config.capability_of(target)
    except ValueError:
        return f"{target!r} is no CUDA architecture."
    if capability < OLDEST:
        return f"the kernels need sm_{OLDEST} or later, and the target is {target}."
    return None


def _arch_problem(target: str) -> str | None:
    arch = config.compile_arch(target)
    if toolchain.knows(arch):
        return None
    installed = toolchain.version("nvidia-cutlass-dsl")
    return f"nvidia-cutlass-dsl {installed} does not know {arch}. Remedy: install a later nvidia-cutlass-dsl."
