"""The CuTeDSL kernels on the CPU: compile a variant, launch it through its own launcher, interpret its PTX."""

from __future__ import annotations

import tempfile
from functools import lru_cache

from iq_kernels_cute import _abi
from iq_kernels_cute.indexer_q import config, layout
from tests.cases import Case

from .cute_host import HostLauncher
from .launch import Execution, Launch, execute
from .parse import parse
from .placement import Placed, placed_tensors


class CuteKernel:
    """One compiled variant: its PTX, parsed, the cubin made of it, and its launcher."""

    def __init__(self, variant: config.Variant) -> None:
        from iq_kernels_cute.indexer_q.compiling import compile_variant

        with tempfile.TemporaryDirectory() as folder:
            self._compiled = compile_variant(variant, f"--keep-ptx --keep-cubin --dump-dir={folder}")
            self.ptx: str = self._compiled.artifacts.PTX
            self.cubin: bytes = self._compiled.artifacts.CUBIN
        self.variant = variant
        self.kernel = parse(self.ptx).kernel()
        self.launcher = HostLauncher(self._compiled, self.kernel)


@lru_cache(maxsize=64)
def compiled(variant: config.Variant) -> CuteKernel:
    """Compile a variant once a process."""
    return CuteKernel(variant)


def schedule(case: Case, target: str, placed: dict[str, Placed]) -> tuple[tuple[int, config.Variant], ...]:
    """The variants that the launch code has for these strides and alignments, and up to how many tokens."""
    facts = {name: _facts(each) for name, each in placed.items()}
    problem = layout.problem(case.op, facts)
    if problem is not None:
        raise ValueError(f"the kernels refuse this case: {problem}")
    return config.schedule(_abi.Workload(**case.workload_fields(target)), layout.is_dense(target, facts))


def choose(case: Case, target: str, placed: dict[str, Placed]) -> config.Variant:
    """The variant that the launch code takes for this case."""
    return next(variant for limit, variant in schedule(case, target, placed) if case.q.shape[0] <= limit)


def run(case: Case, variant: config.Variant, ptx: str | None = None) -> Execution:
    """Interpret `variant` on a case; `ptx` replaces the compiled text (planted faults), the launch stays as it is."""
    kernel = compiled(variant)
    placed = placed_tensors(case)
    return execute(parse(ptx).kernel() if ptx else kernel.kernel, launch(kernel, case, placed), placed)


def launch(kernel: CuteKernel, case: Case, placed: dict[str, Placed]) -> Launch:
    """What the kernel's launcher asks of the driver for these tensors."""
    arguments: list[Placed | float] = list(placed.values())
    arguments.insert(4, case.softmax_scale * case.head_scale)
    (made,) = kernel.launcher(*arguments)
    return made


def _facts(placed: Placed) -> _abi.TensorFacts:
    tensor = placed.tensor
    return _abi.TensorFacts(
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        min(256, placed.address & -placed.address),
    )
