"""What ptxas makes of the kernels: it fuses no multiplication with an addition that their PTX keeps apart.

The disassembler is the one that Triton brings. FFMA is the fused fp32 instruction of SASS, FFMA2 two of it at once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import triton

from iq_ops import _abi

BUNDLED = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
DISASSEMBLER = str(BUNDLED) if BUNDLED.exists() else shutil.which("nvdisasm")
DTYPES = ("int64", "float32", "bfloat16", "float32")


def cute(workload: _abi.Workload) -> Iterator[tuple[object, str, bytes]]:
    from iq_kernels_cute.indexer_q import config
    from iq_kernels_cute.indexer_q.compiling import compile_variant

    for variant in config.variants(workload):
        with tempfile.TemporaryDirectory() as place:
            artifacts = compile_variant(variant, f"--keep-ptx --keep-cubin --dump-dir={place}").artifacts
            yield variant, artifacts.PTX, artifacts.CUBIN


def triton_kernels(workload: _abi.Workload) -> Iterator[tuple[object, str, bytes]]:
    from iq_kernels_triton.indexer_q import compiling, config

    few_heads = config.choose(replace(workload, num_heads=8), config.CONTIGUOUS, 1 << 20)
    for variant in (*config.all_variants(workload)[:2], few_heads):  # the others differ in addresses alone
        compiled = triton.compile(
            compiling.source(variant), target=compiling.gpu_target(variant.target), options=compiling.options(variant)
        )
        yield variant, compiled.asm["ptx"], compiled.asm["cubin"]


def sass(cubin: bytes) -> str:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "kernel.cubin"
        path.write_bytes(cubin)
        return subprocess.run([DISASSEMBLER, "-c", path], capture_output=True, text=True, check=True).stdout


def values(text: str, one: str, two: str) -> int:
    """How many values the instructions `one`, and `two` at once, make."""
    return len(re.findall(one, text)) + 2 * len(re.findall(two, text))


@pytest.mark.skipif(DISASSEMBLER is None, reason="neither Triton nor PATH has nvdisasm")
@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize(("target", "style"), [("sm_80", "neox"), ("sm_90", "interleaved"), ("sm_100", "interleaved")])
@pytest.mark.parametrize("kernels", [cute, triton_kernels])
def test_nothing_is_contracted(kernels, target: str, style: str, op: str, hadamard: bool) -> None:
    workload = _abi.Workload(op, 64, 128, 64, *DTYPES, style, "tail", hadamard, target, None)
    for variant, ptx, cubin in kernels(workload):
        text = sass(cubin)
        assert values(text, r"\bFMUL\b", r"\bFMUL2\b"), "the disassembly has the rotation's products"
        asked_for = values(ptx, r"\bfma\.rn\.f32\s", r"\bfma\.rn\.f32x2\s")
        assert values(text, r"\bFFMA\b", r"\bFFMA2\b") == asked_for, variant
