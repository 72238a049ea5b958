"""The table of registers a thread: `python packages/iq-kernels-cute/tests/registers.py` writes it anew.

Compile every kernel that the table's workloads can run, as `config.py` chooses, and read its cubin. The counts belong
to the compiler of one nvidia-cutlass-dsl version, which the file names.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import cubin

from iq_kernels_cute import _abi, toolchain
from iq_kernels_cute.indexer_q import config
from iq_kernels_cute.indexer_q.compiling import compile_variant

PATH = Path(__file__).with_name("registers.json")
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")


def workloads() -> dict[str, _abi.Workload]:
    """DeepSeek-V4's dims in both formats, with and without Hadamard, by a short name."""
    found = {}
    for arch in ARCHITECTURES:
        for op in _abi.OPS:
            for hadamard in (False, True):
                name = f"{arch} {op.removeprefix('indexer_q_')}{' hadamard' if hadamard else ''}"
                found[name] = _abi.Workload(
                    op,
                    64,
                    128,
                    64,
                    "int64",
                    "float32",
                    "bfloat16",
                    "float32",
                    "interleaved",
                    "tail",
                    hadamard,
                    arch,
                    None,
                )
    return found


def measure(workload: _abi.Workload) -> dict[str, dict[str, int]]:
    """Registers and stack of each kernel of one workload, by how it lays out the work."""
    found = {}
    for variant in config.variants(workload):
        with tempfile.TemporaryDirectory() as place:
            compiled = compile_variant(variant, f"--keep-cubin --dump-dir={place}")
            found[label(variant)] = cubin.resources(compiled.artifacts.CUBIN)
    assert len(found) == len(config.variants(workload)), "two variants have one label"
    return found


def label(v: config.Variant) -> str:
    """All that tells the variants of one workload apart."""
    place = f"{'dense' if v.dense else 'strided'} {v.vector}x{v.chunks} dims, {v.heads_per_thread} heads a thread"
    block = f"{v.threads} threads, {v.min_blocks} blocks"
    hints = f"q{v.load_modifier} cache{v.cache_modifier} out{v.store_modifier} prefetch {v.prefetch_tokens}"
    return f"{place}, {block}, {hints}"


def main() -> None:
    """Write the table."""
    table = {"nvidia-cutlass-dsl": toolchain.version("nvidia-cutlass-dsl"), "kernels": {}}
    for name, workload in workloads().items():
        table["kernels"][name] = measure(workload)
    PATH.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
