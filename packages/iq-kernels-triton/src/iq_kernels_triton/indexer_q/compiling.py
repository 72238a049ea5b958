"""Compile variants and keep them: one loaded kernel for each variant and device, made at most once a process.

Compiling goes through `triton.compile` with an explicit signature, not through a call of the JIT function, so that it
needs no tensors and no device and so that nothing but the variant decides what is compiled. Triton's own disk cache
(TRITON_CACHE_DIR) keeps the binaries between processes.
"""

from __future__ import annotations

import threading
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from iq_kernels_triton._errors import CompileError

from . import config, kernel

FUNCTIONS: dict[str, Any] = {
    "indexer_q_fp8": kernel.indexer_q_fp8_kernel,
    "indexer_q_mxfp4": kernel.indexer_q_mxfp4_kernel,
}
INTERPRETED = not isinstance(kernel.indexer_q_fp8_kernel, triton.runtime.JITFunction)

_loaded: dict[tuple[config.Variant, int | None], Any] = {}
_lock = threading.Lock()


def compiled(variant: config.Variant, device_index: int | None) -> Any | None:
    """Return the kernel loaded on that device if there is one; compile nothing."""
    return _loaded.get((variant, device_index))


def compile_variant(variant: config.Variant, device_index: int | None) -> Any:
    """Return the kernel of `variant`, loaded on the current device, which must be `device_index`.

    With None, only compile it for its target: no device is needed, and later processes find it in the disk cache.
    Raises CompileError if Triton, the assembler or the driver refuses it.
    """
    with _lock:
        found = _loaded.get((variant, device_index))
        if found is not None:
            return found
        try:
            result = triton.compile(source(variant), target=gpu_target(variant.target), options=options(variant))
            if device_index is not None:
                result[(1, 1, 1)]  # makes the launcher and loads the binary; launches nothing
        except Exception as error:
            raise CompileError(f"Triton {triton.__version__} could not compile {variant.label}: {error}") from error
        _loaded[variant, device_index] = result
        return result


def compile_count() -> int:
    """Kernels compiled, or loaded from the disk cache, so far in this process."""
    return len(_loaded)


def source(variant: config.Variant) -> ASTSource:
    """Return the kernel's source bound to the variant's types, constants and alignments."""
    function = FUNCTIONS[variant.op]
    constants, types = dict(variant.constants), dict(variant.types)
    signature = {name: "constexpr" if name in constants else types[name] for name in function.arg_names}
    attributes = {
        (function.arg_names.index(name),): [["tt.divisibility", divisor]] for name, divisor in variant.divisible
    }
    return ASTSource(function, signature, constants, attributes)


def gpu_target(target: str) -> GPUTarget:
    """Triton's name of a target: "sm_90" or "gfx942"."""
    capability = config.cuda_capability(target)
    if capability:
        return GPUTarget("cuda", capability, config.warp_size(target))
    return GPUTarget("hip", target, config.warp_size(target))


def options(variant: config.Variant) -> dict[str, Any]:
    """Compiler options: the contract forbids contraction into FMA."""
    chosen: dict[str, Any] = {"num_warps": variant.num_warps, "enable_fp_fusion": False}
    if variant.use_pdl:
        chosen["launch_pdl"] = True
    return chosen
