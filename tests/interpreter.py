"""The Triton kernels under Triton's interpreter, in a process of its own, where TRITON_INTERPRET is set from the start.

The process makes the case itself, runs it, compares it with the reference there, and answers with the difference.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest


def difference(maker: str, arguments: dict[str, Any]) -> str | None:
    """Run `cases.<maker>(**arguments)` in this process; say how the Triton kernels differ. None: in no bit."""
    assert os.environ["TRITON_INTERPRET"] == "1"
    import cases

    case = getattr(cases, maker)(**arguments)
    actual = cases.run(getattr(importlib.import_module("iq_kernels_triton"), case.op), case)
    expected = case.expected or cases.reference(case)
    differences = (cases.first_difference(name, actual[name], value) for name, value in expected.items())
    return next((found for found in differences if found is not None), None)


def public_difference(backend: str, arguments: dict[str, Any]) -> str | None:
    """As `difference`, through `iq_ops.fused_indexer_q_rope_quant` with a forced backend."""
    import cases
    import iq_ops

    case = cases.random_case(**arguments)
    actual = cases.raw_outputs(case, iq_ops.fused_indexer_q_rope_quant(*case.positional, backend=backend))
    explained = iq_ops.explain(*case.positional, backend=backend).backend
    if explained != backend:
        return f"explain says {explained}"
    differences = (cases.first_difference(name, actual[name], want) for name, want in cases.reference(case).items())
    return next((found for found in differences if found is not None), None)


class Interpreter:
    """The way in: `interpreter.check("golden", name="v4_fp8")`."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def check(self, maker: str, **arguments: Any) -> None:
        """Fail where the Triton kernels differ from the reference, or from the golden outputs, in one bit."""
        found = self._pool.submit(difference, maker, arguments).result()
        assert found is None, f"{found} in {maker}({arguments})"

    def check_public(self, *, backend: str, **arguments: Any) -> None:
        """Fail where the public function, forced to a backend, differs from the reference in one bit."""
        found = self._pool.submit(public_difference, backend, arguments).result()
        assert found is None, f"{found} in {arguments}"


@pytest.fixture(name="interpreter", scope="module")
def interpreting() -> Iterator[Interpreter]:
    """Start the process for a module's tests. Only it sees the variable: here kernels may compile for a GPU."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            patch.setenv("OMP_NUM_THREADS", "1")
            pool.submit(os.getpid).result()  # the process starts with the first job
        yield Interpreter(pool)
