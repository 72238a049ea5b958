"""The Triton kernels on the CPU: the package's own launch code runs, a recorder stands in for the driver.

Grid and arguments are whatever `iq_kernels_triton.indexer_q.launch` passes to the compiled kernel; block and shared
memory come from the compiled kernel's metadata, the layout of the parameters from its PTX.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any
from unittest import mock

import torch

from iq_kernels_triton.indexer_q import compiling, config, launch
from tests.cases import Case

from .launch import Execution, Launch, execute
from .parse import parse
from .placement import Placed, placed_tensors
from .syntax import Parameter


class TritonKernel:
    """One compiled variant: its PTX, parsed, the cubin made of it, and its metadata."""

    def __init__(self, variant: config.Variant) -> None:
        self.variant = variant
        self.compiled = compiling.compile_variant(variant, None)
        self.ptx: str = self.compiled.asm["ptx"]
        self.cubin: bytes = self.compiled.asm["cubin"]
        self.kernel = parse(self.ptx).kernel()

    def launch(self, grid: tuple[int, int, int], arguments: list[int | float]) -> Launch:
        """What Triton's launcher would pass to the driver for these arguments."""
        metadata = self.compiled.metadata
        assert not metadata.global_scratch_size, "the kernels use no scratch memory, whose pointer would follow"
        # Triton's launcher appends the pointers of its scratch buffers, which are null here.
        values = [*arguments, *[0] * (len(self.kernel.parameters) - len(arguments))]
        block = bytearray(self.kernel.parameter_bytes)
        for parameter, value in zip(self.kernel.parameters, values, strict=True):
            block[parameter.offset : parameter.offset + parameter.size] = _encode(parameter, value)
        threads = metadata.num_warps * metadata.warp_size
        return Launch(grid, (threads, 1, 1), bytes(block), metadata.shared, bool(metadata.launch_pdl))


@lru_cache(maxsize=64)
def compiled(variant: config.Variant) -> TritonKernel:
    """Compile a variant once a process."""
    return TritonKernel(variant)


class _Recorder:
    """Stands where a loaded kernel would: `kernel[grid](*arguments)`."""

    def __init__(self) -> None:
        self.launches: list[tuple[config.Variant, tuple[int, int, int], list[int | float]]] = []

    def compiled(self, variant: config.Variant, device_index: int) -> Any:
        def bind(grid: tuple[int, int, int]) -> Any:
            constants = {name for name, _ in variant.constants}
            names = compiling.FUNCTIONS[variant.op].arg_names

            def call(*arguments: Any) -> None:
                passed = [value for name, value in zip(names, arguments, strict=True) if name not in constants]
                self.launches.append((variant, grid, passed))

            return call

        return mock.MagicMock(__getitem__=lambda _, grid: bind(grid))


class _OnDevice:
    """A placed tensor as the launch code sees it: on CUDA device 0, at the address it has in the interpreter."""

    device = torch.device("cuda", 0)

    def __init__(self, placed: Placed) -> None:
        self._placed = placed
        self.dtype, self.shape = placed.tensor.dtype, placed.tensor.shape

    def data_ptr(self) -> int:
        return self._placed.address

    def __getattr__(self, name: str) -> Any:  # stride(), element_size(), is_contiguous(), ...
        return getattr(self._placed.tensor, name)


def launches(case: Case, target: str, placed: dict[str, Placed]) -> tuple[config.Variant, Launch]:
    """Call the package's raw function for `target` and record the one launch it makes."""
    recorder = _Recorder()
    with (
        mock.patch.object(launch, "target_of", return_value=target),
        mock.patch.object(compiling, "compiled", recorder.compiled),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
        mock.patch.dict(launch._plans, clear=True),
    ):
        getattr(launch, case.op)(
            **{name: _OnDevice(each) for name, each in placed.items()},
            weights_softmax_scale=case.softmax_scale,
            weights_head_scale=case.head_scale,
            **case.options,
        )
    ((variant, grid, arguments),) = recorder.launches
    return variant, compiled(variant).launch(grid, arguments)


def run(case: Case, target: str, ptx: str | None = None) -> Execution:
    """Interpret the kernel that the package launches for `case` on `target`; `ptx` replaces its text."""
    placed = placed_tensors(case)
    variant, made = launches(case, target, placed)
    kernel = compiled(variant)
    # enable_fp_fusion=False makes Triton pass --fmad=false to ptxas, so nothing is contracted behind the PTX.
    return execute(
        parse(ptx).kernel() if ptx else kernel.kernel, made, placed, contract=kernel.compiled.metadata.enable_fp_fusion
    )


def _encode(parameter: Parameter, value: int | float) -> bytes:
    if isinstance(value, float):
        return struct.pack("<f", value)
    return (value % (1 << 8 * parameter.size)).to_bytes(parameter.size, "little")
