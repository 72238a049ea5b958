"""One way to run either backend's kernels on a case: what it would launch, interpreted, and where it differs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from tests.cases import Case, first_difference

from .launch import Execution
from .placement import placed_tensors

CUTE, TRITON = "cute", "triton"
TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")  # cute compiles sm_90 and later as sm_90a, sm_100a, sm_120a


@dataclass(frozen=True)
class Program:
    """A compiled kernel that a backend has for a case on a target."""

    backend: str
    label: str
    variant: Any
    ptx: str


def launched(backend: str, case: Case, target: str) -> Program:
    """The program that `backend` launches for this case on `target`."""
    if backend == CUTE:
        from . import cute_kernels

        return _cute(cute_kernels.choose(case, target, placed_tensors(case)))
    from . import triton_kernels

    variant, _ = triton_kernels.launches(case, target, placed_tensors(case))
    return Program(TRITON, variant.label, variant, triton_kernels.compiled(variant).ptx)


def for_other_lengths(case: Case, target: str) -> list[Program]:
    """Every program that cute would launch for a case like this one, whatever its number of tokens."""
    from . import cute_kernels

    steps = cute_kernels.schedule(case, target, placed_tensors(case))
    return [_cute(variant) for variant in dict.fromkeys(variant for _, variant in steps)]


def _cute(variant: Any) -> Program:
    from . import cute_kernels

    return Program(CUTE, _cute_label(variant), variant, cute_kernels.compiled(variant).ptx)


def interpret(program: Program, case: Case, ptx: str | None = None) -> Execution:
    """Run a program over a case on the CPU; `ptx` replaces its text."""
    if program.backend == CUTE:
        from . import cute_kernels

        return cute_kernels.run(case, program.variant, ptx)
    from . import triton_kernels

    return triton_kernels.run(case, program.variant.target, ptx)


def difference(execution: Execution, expected: dict[str, torch.Tensor]) -> str | None:
    """Where an execution first leaves what is expected, and which thread wrote that place; None if nowhere."""
    for name, value in expected.items():
        actual = execution.outputs[name]
        text = first_difference(name, actual, value)
        if text is not None:
            differs = (_bytes(actual) != _bytes(value)).any(-1)
            if actual.dtype.is_floating_point:
                differs &= ~(actual.isnan() & value.isnan()).flatten()
            byte = int(differs.nonzero()[0]) * actual.element_size()
            return f"{text}, {execution.writer(name, byte)}"
    return None


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """The compilers that made the PTX."""
    from importlib import metadata

    return {name: metadata.version(name) for name in ("nvidia-cutlass-dsl", "triton")}


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8).view(-1, tensor.element_size())


def _cute_label(variant: Any) -> str:
    shape = f"{variant.chunks}x{variant.vector} dims x {variant.heads_per_thread} heads a thread"
    return f"{variant.op} {variant.arch} {'dense' if variant.dense else 'strided'} {shape}, {variant.threads} threads"
