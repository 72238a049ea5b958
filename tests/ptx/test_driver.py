"""On a GPU: the interpreter and the CUDA driver give the same bytes for the same PTX."""

from __future__ import annotations

import pytest

from tests.ptx import driver_check
from tests.ptx.backends import CUTE, TRITON

CASES = (*driver_check.SAMPLE, "strided", "permuted")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", [CUTE, TRITON])
def test_driver_and_interpreter_agree(backend: str, name: str) -> None:
    case = next(case for case in driver_check.sample() if case.name == name)
    assert driver_check.check(backend, case, driver_check.current_target()) is None
