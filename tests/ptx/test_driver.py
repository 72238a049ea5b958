"""The interpreter, given a kernel's PTX, and a GPU, given the cubin made of it, write the same bytes."""

from __future__ import annotations

import pytest
import torch

from tests import cases
from tests.ptx import driver_check
from tests.ptx.backends import CUTE, TRITON
from tests.ptx.placement import placed_tensors

CASES = (*driver_check.SAMPLE, "strided", "permuted")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", [CUTE, TRITON])
def test_driver_and_interpreter_agree(backend: str, name: str) -> None:
    case = next(case for case in driver_check.sample() if case.name == name)
    assert driver_check.check(backend, case, driver_check.current_target()) is None


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as caught:
        driver_check.main([])
    assert caught.value.code == 2
    assert "it needs an NVIDIA GPU, and PyTorch sees none" in capsys.readouterr().err


@pytest.mark.parametrize("backend", [CUTE, TRITON])
def test_the_cubin_holds_the_kernel_of_the_ptx(backend: str) -> None:
    """What a machine without a GPU can say of the cubin that the driver would load."""
    case = cases.golden("v4_fp8")
    cubin, kernel, _, _ = driver_check.launch_of(backend, case, "sm_90", placed_tensors(case))
    assert cubin.startswith(b"\x7fELF")
    assert f".text.{kernel.name}\0".encode() in cubin
