"""Every target compiles both formats without a device, and its code is what the kernels promise.

No inline assembly but programmatic dependent launch, no FMA in the rotation, 128-bit loads of q, hardware FP8 where
the target has it. Triton's disk cache answers where nothing changed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from iq_kernels_triton import _abi
from iq_kernels_triton.indexer_q import compiling, config

from .test_config import WORKLOAD

TARGETS = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")
AMD_FMA = r"v_(?:pk_)?(?:fma|mad|fmac|mac)\w*_f32"
LONG = 4096


def compiled(op, target="sm_90", layout=config.CONTIGUOUS, tokens=LONG, use_pdl=None, **changes):
    variant = config.choose(replace(WORKLOAD, op=op, target=target, **changes), layout, tokens)
    if use_pdl is not None:
        constants = {**dict(variant.constants), "USE_PDL": use_pdl}
        variant = replace(variant, use_pdl=use_pdl, constants=tuple(constants.items()))
    return compiling.compile_variant(variant, None)


def threads_elements(op, tokens=LONG):
    variant = config.choose(replace(WORKLOAD, op=op), config.CONTIGUOUS, tokens)
    return variant.rows * WORKLOAD.head_dim // (32 * variant.num_warps)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("num_heads", [64, 8])
@pytest.mark.parametrize("op", _abi.OPS)
def test_every_target_compiles_without_inline_assembly_or_contraction(op, num_heads, target):
    kernel = compiled(op, target, tokens=LONG * 64 // num_heads, use_pdl=False, num_heads=num_heads)
    assert "inline_asm" not in kernel.asm["ttir"]
    assert not re.search(r"\bcontract\b", kernel.asm["llir"])
    amd = target in config.AMD_TARGETS
    code = kernel.asm["amdgcn" if amd else "ptx"]
    # The rotation is 3 instructions an element, a product and a sum each: with contraction there would be FMAs.
    fmas = re.findall(AMD_FMA if amd else r"\bfma\.rn\.f32[^;]*;", code)
    if op == "indexer_q_fp8":
        assert fmas == []
    elif not amd:
        # E2M1 rounding asks for two an element, whose addends are 2**23 + 2 and 2**23 + 4; Blackwell packs pairs.
        assert sum(2 if "f32x2" in fma else 1 for fma in fmas) == 2 * threads_elements(op)
        assert all(re.search(r"0f4B00000[24];$", fma) for fma in fmas if "f32x2" not in fma)
    else:
        widths = re.findall(r"call (?:float|<(\d) x float>) @llvm\.fma\.", kernel.asm["llir"])
        assert sum(int(width or 1) for width in widths) == 2 * threads_elements(op)


@pytest.mark.parametrize("rope_style", _abi.ROPE_STYLES)
@pytest.mark.parametrize("rope_at", _abi.ROPE_PLACES)
@pytest.mark.parametrize("rope_dim", [48, 64, 128])
def test_no_rotation_contracts(rope_style, rope_at, rope_dim):
    ptx = compiled("indexer_q_fp8", rope_style=rope_style, rope_at=rope_at, rope_dim=rope_dim).asm["ptx"]
    assert "fma.rn.f32" not in ptx
    assert re.search(r"\bmul(?:\.rn)?\.f32", ptx)


@pytest.mark.parametrize("op", _abi.OPS)
def test_dependent_launch_is_the_only_assembly_with_pdl(op):
    kernel = compiled(op)
    ptx = kernel.asm["ptx"]
    release, wait = ptx.index("griddepcontrol.launch_dependents"), ptx.index("griddepcontrol.wait")
    assert release < wait < ptx.index("ld.global")
    assembly = re.findall(r"inline_asm[^\"]*\"([^\"]*)\"", kernel.asm["ttir"])
    assert all(text.startswith("griddepcontrol.") for text in assembly)
    assert kernel.metadata.launch_pdl


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("layout", [config.CONTIGUOUS, config.STRIDED])
@pytest.mark.parametrize("tokens", [1, LONG])
def test_q_is_loaded_once_in_128_bit_words_and_codes_are_stored_in_words(op, layout, tokens):
    ptx = compiled(op, layout=layout, tokens=tokens).asm["ptx"]
    elements = threads_elements(op, tokens)
    wide = len(re.findall(r"ld\.global\.v4\.b32", ptx))
    angles = 4  # cosines and sines of four pairs in each of two quarters, fp32
    assert wide == elements // 8 + angles
    narrow = re.findall(r"ld\.global(?:\.\w+)*\.(b16|b32|b64|u16|u32|u64)\b", re.sub(r"ld\.global\.v4\.b32", "", ptx))
    assert len(narrow) <= 3, narrow  # the position, and the weights of one or two heads
    stores = Counter(re.findall(r"st\.global\.((?:v\d\.)?b\d+)", ptx))
    if op == "indexer_q_fp8":
        # Eight codes by one store of two words, and once more for poisoned rows.
        assert stores["v2.b32"] == 2 * elements // 8
    else:
        # Eight codes a word, then the four scale bytes, the weight, and the weight of a padding token.
        assert stores["b32"] == elements // 8 + 3
    # Padding rows, whose zeros go out 16 bytes at a time but for the few scale bytes.
    assert stores["v4.b32"] == elements // (16 if op == "indexer_q_fp8" else 32)
    assert stores["b8"] <= (op == "indexer_q_mxfp4")


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("num_heads", [1, 5, 8, 16])
@pytest.mark.parametrize(
    ("rope_style", "cache", "angles"),  # angles in a 128-bit load; four pairs in bf16 take 64 bits
    [("interleaved", "float32", 4), ("interleaved", "bfloat16", None), ("neox", "float32", 4), ("neox", "bfloat16", 8)],
)
def test_rows_of_several_tokens_load_what_their_lanes_hold(op, num_heads, rope_style, cache, angles):
    """Wide loads of q and of each row's angles, all before the barrier; no value changes its lane on the way."""
    ptx = compiled(
        op, tokens=1 << 20, num_heads=num_heads, rope_style=rope_style, cos_sin_cache_dtype=cache
    ).asm["ptx"]  # fmt: skip
    elements = threads_elements(op, 1 << 20)
    loads = Counter(
        int(vector or 1) * int(bits) for vector, bits in re.findall(r"ld\.global(?:\.v(\d))?\.[bu](\d+)", ptx)
    )
    assert loads[128] == elements // 8 + (elements // 2 // angles if angles else 0)
    assert ptx.rindex("ld.global") < ptx.index("bar.sync")
    assert ptx.count("bar.sync") == 2  # after the loads, and for the lanes that store weights


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("tokens", [1, LONG])
def test_every_load_is_issued_before_the_barrier_that_no_load_passes(op, tokens):
    ptx = compiled(op, tokens=tokens).asm["ptx"]
    assert ptx.rindex("ld.global") < ptx.index("bar.sync")


@pytest.mark.parametrize("target", TARGETS)
def test_fp8_conversion_is_the_hardwares_where_it_has_one(target):
    asm = compiled("indexer_q_fp8", target).asm
    code = asm["amdgcn" if target in config.AMD_TARGETS else "ptx"]
    converts = bool(re.search(r"cvt\.rn\.satfinite\.e4m3x2|v_cvt_(?:scalef32_)?pk_fp8", code))
    assert converts == (target not in ("sm_80", "gfx942"))


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("head_dim", _abi.HEAD_DIMS)
def test_every_head_dim_compiles_with_hadamard_and_a_part_of_a_block_of_heads(op, head_dim):
    for layout in (config.STRIDED, config.UNALIGNED):
        kernel = compiled(op, layout=layout, use_pdl=False, head_dim=head_dim, rope_dim=16, hadamard=True, num_heads=5)
        assert "inline_asm" not in kernel.asm["ttir"]
