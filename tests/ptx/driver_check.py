"""A kernel's PTX in the interpreter, the cubin made of that PTX on the GPU: every output byte must agree.

python -m tests.ptx.driver_check [--backend cute] [--case v4_fp8 ...]   (on a machine with an NVIDIA GPU)

The cubin is the one that the compiler's own ptxas made of exactly this PTX and that production code loads. Both runs
get one launch, made by the kernel's own launcher for tensors at their addresses on the GPU. The interpreter sees CPU
copies of them at the same addresses.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import torch

from tests import cases

from . import driver
from .backends import CUTE, TRITON, difference
from .launch import Execution, Launch, execute
from .placement import Placed
from .syntax import Kernel

SAMPLE = ("v4_fp8", "v4_mxfp4", "v4_hadamard_fp8", "v4_hadamard_mxfp4", "v32_fp8", "wide_mxfp4", "odd_heads_fp8")


def sample() -> list[cases.Case]:
    """Golden cases, and random ones with strides, narrow dtypes and a partial last block."""
    strided = cases.random_case(11, fmt="fp8", tokens=29, num_heads=5, layout="slice", positions_dtype=torch.int32)
    permuted = cases.random_case(
        12, fmt="mxfp4", tokens=29, num_heads=3, layout="permuted", cache_dtype=torch.bfloat16, hadamard=True,
        weights_out_dtype=torch.bfloat16,
    )  # fmt: skip
    return [*map(cases.golden, SAMPLE), replace(strided, name="strided"), replace(permuted, name="permuted")]


def check(backend: str, case: cases.Case, target: str) -> str | None:
    """Run one case both ways on the current device; where they first differ, or None."""
    on_gpu = case.to("cuda")
    outputs = {name: torch.full_like(torch.empty(shape, dtype=dtype, device="cuda").view(torch.uint8), cases.POISON)
               .view(dtype) for name, (shape, dtype) in case.output_shapes().items()}  # fmt: skip
    tensors = {name: getattr(on_gpu, name) for name in ("positions", "q", "cos_sin_cache", "weights")} | outputs
    placed = {
        name: Placed(name, _cpu_copy(tensor), tensor.data_ptr(), name in outputs) for name, tensor in tensors.items()
    }
    cubin, kernel, made, contract = launch_of(backend, case, target, placed)
    interpreted = execute(kernel, made, placed, contract)
    driver.launch(cubin, kernel, made)
    return difference_of(interpreted, {name: tensor.cpu() for name, tensor in outputs.items()})


def difference_of(interpreted: Execution, driven: dict[str, torch.Tensor]) -> str | None:
    """Where the interpreter's outputs leave the driver's, NaN payloads included."""
    for name, tensor in driven.items():
        if not torch.equal(interpreted.outputs[name].view(torch.uint8), tensor.view(torch.uint8)):
            return difference(interpreted, {name: tensor}) or f"{name}: NaNs of different bits"
    return None


def current_target() -> str:
    """The target of the current CUDA device: "sm_90"."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def launch_of(
    backend: str, case: cases.Case, target: str, placed: dict[str, Placed]
) -> tuple[bytes, Kernel, Launch, bool]:
    """The cubin, the kernel parsed from its PTX, the launch, and whether ptxas was allowed to contract."""
    if backend == CUTE:
        from . import cute_kernels

        variant = cute_kernels.choose(case, target, placed)
        compiled = cute_kernels.compiled(variant)
        return compiled.cubin, compiled.kernel, cute_kernels.launch(compiled, case, placed), True
    from . import triton_kernels

    chosen, made = triton_kernels.launches(case, target, placed)
    program = triton_kernels.compiled(chosen)
    return program.cubin, program.kernel, made, program.compiled.metadata.enable_fp_fusion


def _cpu_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same values and strides on the CPU."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return copy.copy_(tensor)


def main(arguments: list[str] | None = None) -> int:
    """Print one line a case; exit code 1 if any byte differs, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m tests.ptx.driver_check", description="Driver against interpreter.")
    parser.add_argument("--backend", choices=(CUTE, TRITON), action="append")
    parser.add_argument("--case", action="append", help="a name of the sample; default: all of it")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("it needs an NVIDIA GPU, and PyTorch sees none; `python -m tests.ptx run` interprets without one")
    target = current_target()
    print(f"{torch.cuda.get_device_name()}, {target}")
    failed = False
    for backend in options.backend or (CUTE, TRITON):
        for case in sample():
            if options.case and case.name not in options.case:
                continue
            problem = check(backend, case, target)
            failed |= problem is not None
            print(f"{backend} {case.name}: {problem or 'the same bytes'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
