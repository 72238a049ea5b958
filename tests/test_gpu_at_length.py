"""What only a GPU can show: 10**8 random elements an option through every kernel; memory and race checks of a run."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import torch

import cases
from test_contract import KERNELS, kernel

pytestmark = pytest.mark.gpu

HUNDRED_MILLION = -(-(10**8) // (64 * 128))  # tokens of 64 heads of 128 dims

ONE_CALL = """
import sys, torch, cases
from test_contract import kernel
backend, fmt, layout = sys.argv[1:]
case = cases.random_case(1, fmt=fmt, tokens=67, num_heads=24, layout=layout, device="cuda")
outputs = cases.run(kernel(backend, case.op), case)
torch.cuda.synchronize()
cases.assert_same(outputs, cases.reference(case))
"""


@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("options", cases.OPTION_COMBINATIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_a_hundred_million_random_elements(fmt, options):
    case = cases.random_case(21, fmt=fmt, tokens=HUNDRED_MILLION, num_heads=64, device="cuda", **options)
    expected = cases.reference(case)
    for backend in KERNELS:
        cases.assert_same(cases.run(kernel(backend, case.op), case), expected, backend)
    torch.cuda.empty_cache()


# CuTeDSL finds out the architecture with driver calls that may fail, and handles it. memcheck would count each of them
# as an error of the program; with their report off it counts wrong accesses of memory alone.
TOOLS = {"memcheck": ["--report-api-errors", "no"], "racecheck": []}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("backend", "layout"), [("cute", "contiguous"), ("cute", "slice"), ("triton", "offset")])
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_compute_sanitizer_finds_nothing(tool, backend, layout, fmt):
    sanitizer = shutil.which("compute-sanitizer")
    assert sanitizer, "compute-sanitizer comes with the CUDA toolkit and must be on PATH"
    call = [sys.executable, "-c", ONE_CALL, backend, fmt, layout]
    done = subprocess.run(
        [sanitizer, "--tool", tool, *TOOLS[tool], "--error-exitcode", "9", *call],
        cwd=cases.GOLDEN.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors" in done.stdout or "0 hazards" in done.stdout, done.stdout
