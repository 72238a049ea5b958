"""No kernel spills, and the registers a thread are those of the committed table."""

from __future__ import annotations

import dataclasses
import json

import pytest
import registers

from iq_kernels_cute import toolchain

TABLE = json.loads(registers.PATH.read_text())


@pytest.mark.parametrize("name", registers.workloads())
def test_registers(name: str):
    measured = registers.measure(registers.workloads()[name])
    assert {kernel: found["stack"] for kernel, found in measured.items()} == dict.fromkeys(measured, 0)
    recorded = TABLE["kernels"][name]
    assert measured.keys() == recorded.keys(), "config.py has changed: run tests/registers.py"
    if toolchain.version("nvidia-cutlass-dsl") == TABLE["nvidia-cutlass-dsl"]:
        assert measured == recorded, "run tests/registers.py if this is meant"
    else:  # another compiler may spend a few more
        for kernel, found in measured.items():
            assert found["registers"] <= 1.5 * recorded[kernel]["registers"]


def test_table_covers_the_workloads():
    assert TABLE["kernels"].keys() == registers.workloads().keys()


@pytest.mark.parametrize("op", ["fp8", "mxfp4"])
@pytest.mark.parametrize(
    ("num_heads", "head_dim", "rope_dim", "style", "place"),
    [(96, 128, 64, "interleaved", "head"), (64, 128, 32, "interleaved", "tail"), (64, 256, 64, "neox", "tail")],
)
def test_a_hadamard_of_other_dims_spills_nothing(op, num_heads, head_dim, rope_dim, style, place):
    changed = {"num_heads": num_heads, "head_dim": head_dim, "rope_dim": rope_dim, "rope_style": style}
    usual = registers.workloads()[f"sm_90a {op} hadamard"]
    for kernel, found in registers.measure(dataclasses.replace(usual, **changed, rope_at=place)).items():
        assert found["stack"] == 0, kernel
        assert found["registers"] <= 168, kernel


@pytest.mark.parametrize("op", ["fp8", "mxfp4"])
@pytest.mark.parametrize("num_heads", [4, 16])
def test_a_hadamard_of_few_heads_and_narrow_dtypes_spills_nothing(op, num_heads):
    changed = {"num_heads": num_heads, "positions_dtype": "int32", "cos_sin_cache_dtype": "bfloat16"}
    usual = registers.workloads()[f"sm_90a {op} hadamard"]
    for kernel, found in registers.measure(dataclasses.replace(usual, **changed, weights_out_dtype="bfloat16")).items():
        assert found["stack"] == 0, kernel
