"""What ptxas makes of the CuTeDSL kernels: no multiplication and addition fused, whatever the PTX says.

The disassembler is the one that Triton brings. FFMA is the fused fp32 instruction of SASS, FFMA2 two of it at once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import triton

from iq_kernels_cute import _abi
from iq_kernels_cute.indexer_q import config
from iq_kernels_cute.indexer_q.compiling import compile_variant

BUNDLED = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
DISASSEMBLER = str(BUNDLED) if BUNDLED.exists() else shutil.which("nvdisasm")
DTYPES = ("int64", "float32", "bfloat16", "float32")


def sass(variant: config.Variant) -> str:
    with tempfile.TemporaryDirectory() as place:
        cubin = compile_variant(variant, f"--keep-cubin --dump-dir={place}").artifacts.CUBIN
        path = Path(place) / "kernel.cubin"
        path.write_bytes(cubin)
        return subprocess.run([DISASSEMBLER, "-c", path], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(DISASSEMBLER is None, reason="neither Triton nor PATH has nvdisasm")
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize(("target", "style"), [("sm_80", "neox"), ("sm_90", "interleaved"), ("sm_100", "interleaved")])
def test_nothing_is_contracted(target: str, op: str, style: str, hadamard: bool) -> None:
    workload = _abi.Workload(op, 64, 128, 64, *DTYPES, style, "tail", hadamard, target, None)
    for variant in config.variants(workload):
        text = sass(variant)
        assert "FMUL" in text, "the disassembly has the rotation's products"
        fused = len(re.findall(r"\bFFMA\b", text)) + 2 * len(re.findall(r"\bFFMA2\b", text))
        across_lanes = 0  # the Hadamard's butterflies across lanes, whose factors are 1 and -1
        if hadamard:
            stages = variant.lanes_per_row.bit_length() - 1
            across_lanes = stages * variant.vector * variant.chunks * variant.heads_per_thread
        assert fused == across_lanes, variant
