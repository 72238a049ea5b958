"""Every architecture, format and option compiles, and its PTX has the instructions it should and no others."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from iq_kernels_cute import _abi
from iq_kernels_cute.indexer_q import config
from iq_kernels_cute.indexer_q.compiling import compile_variant

ARCHITECTURES = (
    "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_100f", "sm_103", "sm_103a",
    "sm_103f",
    "sm_120", "sm_120a", "sm_120f", "sm_121", "sm_121a", "sm_121f",
)  # fmt: skip
OPTIONS = list(itertools.product((False, True), _abi.ROPE_STYLES, _abi.ROPE_PLACES))
# What the matrix below walks through beside architecture, format and option: each value meets each of those in turn.
DTYPES = list(
    itertools.product(
        ("int64", "int32"), ("float32", "bfloat16"), ("bfloat16", "float16", "float32"), ("float32", "bfloat16")
    )
)
SHAPES = ((64, 128, 64), (32, 128, 64), (8, 128, 128), (5, 64, 48), (3, 32, 16), (96, 256, 224))


def variant_of(arch: str, op: str, hadamard: bool, style: str, place: str, turn: int) -> config.Variant:
    """One of the variants that config chooses for a workload, compiled for exactly `arch`."""
    num_heads, head_dim, rope_dim = SHAPES[turn % len(SHAPES)]
    dtypes = DTYPES[turn * 7 % len(DTYPES)]
    workload = _abi.Workload(op, num_heads, head_dim, rope_dim, *dtypes, style, place, hadamard, arch, None)
    choices = config.variants(workload)
    return dataclasses.replace(choices[turn % len(choices)], arch=arch)


def ptx_of(variant: config.Variant, tmp_path) -> str:
    text = compile_variant(variant, f"--keep-ptx --dump-dir={tmp_path}").artifacts.PTX
    return re.sub(r"//[^\n]*", "", text)


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compiles(arch: str, op: str, tmp_path):
    for number, options in enumerate(OPTIONS):
        turn = number + 8 * (ARCHITECTURES.index(arch) + len(ARCHITECTURES) * list(_abi.OPS).index(op))
        variant = variant_of(arch, op, *options, turn)
        assert variant.problem() is None
        check(variant, ptx_of(variant, tmp_path))


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120"])
def test_long_inputs_take_the_widest_loads(arch: str, op: str, tmp_path, make_workload):
    variant = config.choose(make_workload(op=op, target=arch), 65_536, dense=True)
    ptx = ptx_of(variant, tmp_path)
    words = 8 if config.capability_of(arch) >= 100 else 4
    loads = re.findall(r"\bld\.global[\w.:]*\.v(\d)\.b32", ptx)
    row_words = variant.vector * variant.chunks // 2
    assert row_words >= 8  # 16 bf16 a thread
    assert loads.count(str(words)) >= row_words * variant.heads_per_thread // words


def check(variant: config.Variant, ptx: str) -> None:
    """Assert what holds for every kernel."""
    said = f"{variant}\n"
    assert f".target {variant.arch}" in ptx, said
    if variant.capability < config.WIDE_LOADS:
        assert ".v8." not in ptx, said
    assert ("cvt.rn.satfinite.e2m1x2.f32" in ptx) == (variant.op == "indexer_q_mxfp4" and variant.hardware_e2m1), said
    assert ("cvt.rn.satfinite.e4m3x2.f32" in ptx) == (variant.op == "indexer_q_fp8" and variant.hardware_e4m3), said
    # Without a rounding, ptxas may contract. The Hadamard's only FMAs multiply by 1 or -1, which is exact.
    assert not re.search(r"\b(mul|add|sub|fma|mad)(\.ftz)?\.f32", ptx), said
    shuffled = 0
    if variant.hadamard:
        stages = variant.lanes_per_row.bit_length() - 1
        shuffled = stages * variant.vector * variant.chunks * variant.heads_per_thread
    one_by_one, two_at_once = ptx.count("fma.rn.f32 "), ptx.count("fma.rn.f32x2 ")
    assert one_by_one + 2 * two_at_once == shuffled, said
    assert ("f32x2" in ptx) == (variant.hadamard and 100 <= variant.capability < 110), said
    assert not re.search(r"\bbra\b|\.local|\.shared", ptx), said  # straight through, all in registers
    assert ("griddepcontrol.wait" in ptx) == variant.pdl == (variant.capability >= 90), said
    if variant.pdl:
        first_access = re.search(r"\b(ld|st|prefetch)\.global", ptx).start()
        order = [ptx.index("griddepcontrol.launch_dependents"), ptx.index("griddepcontrol.wait"), first_access]
        assert order == sorted(order), said
