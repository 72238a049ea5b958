"""What importing the package and its provider costs: neither triton nor torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = "{'triton', 'torch', 'numpy', 'cutlass', 'iq_ops'}"


@pytest.mark.parametrize("module", ["iq_kernels_triton", "iq_kernels_triton.provider"])
def test_importing_it_imports_nothing_heavy(module):
    code = f"import sys, {module}; print(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_describing_and_counting_import_nothing_heavy():
    code = (
        "import sys; from iq_kernels_triton import provider as p; p.describe(); p.compile_count(); "
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_raw_functions_are_reached_lazily_and_no_other_name_is():
    import iq_kernels_triton

    assert iq_kernels_triton.indexer_q_fp8.__module__ == "iq_kernels_triton.indexer_q.launch"
    assert set(dir(iq_kernels_triton)) == {"__version__", "indexer_q_fp8", "indexer_q_mxfp4"}
    with pytest.raises(AttributeError, match="indexer_q_fp16"):
        _ = iq_kernels_triton.indexer_q_fp16


@pytest.mark.parametrize("name", ["kernel", "rotate", "hadamard", "encode", "numeric"])
def test_device_code_imports_no_torch(name):
    from pathlib import Path

    import iq_kernels_triton

    source = (Path(iq_kernels_triton.__file__).parent / "indexer_q" / f"{name}.py").read_text()
    assert "import triton" in source
    assert "torch" not in source
