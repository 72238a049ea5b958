"""The choice of a variant: launch and warmup agree at every T, and each target gets what its hardware has."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from iq_kernels_triton import _abi
from iq_kernels_triton.indexer_q import config

WORKLOAD = _abi.Workload(
    op="indexer_q_fp8", num_heads=64, head_dim=128, rope_dim=64, positions_dtype="int64",
    cos_sin_cache_dtype="float32", weights_dtype="bfloat16", weights_out_dtype="float32", rope_style="interleaved",
    rope_at="tail", hadamard=False, target="sm_90", device_index=0,
)  # fmt: skip


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("num_heads", [1, 3, 8, 64, 128])
@pytest.mark.parametrize("head_dim", _abi.HEAD_DIMS)
def test_warmup_covers_every_length_and_layout(op, num_heads, head_dim):
    workload = replace(WORKLOAD, op=op, num_heads=num_heads, head_dim=head_dim, rope_dim=32)
    variants = config.all_variants(workload)
    assert len(set(variants)) == len(variants) <= 7
    for layout, tokens in itertools.product(config.LAYOUTS, (1, 2, 7, 63, 64, 500, 512, 4096, 1 << 18)):
        assert config.choose(workload, layout, tokens) in variants


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("num_heads", [1, 3, 5, 8, 24, 64, 96, 128])
@pytest.mark.parametrize("head_dim", _abi.HEAD_DIMS)
def test_every_tile_is_full_whatever_the_number_of_heads(op, num_heads, head_dim):
    """Programs hold as many elements with one head as with many: rows of several tokens where a token has too few."""
    workload = replace(WORKLOAD, op=op, num_heads=num_heads, head_dim=head_dim, rope_dim=32)
    tiles = {(tile // head_dim, tile // thread // 32) for _, tile, thread in config.TILES[op]}
    for variant in config.all_variants(workload):
        assert (variant.rows, variant.num_warps) in tiles
        assert variant.rows.bit_count() == variant.num_warps.bit_count() == 1
        for tokens in (1, 2, 7, 33, 1 << 20):
            unused = config.programs(variant, tokens) * variant.rows - tokens * num_heads
            assert 0 <= unused < variant.rows


@pytest.mark.parametrize(
    ("target", "native_float", "native_fp8", "use_pdl"),
    [
        ("sm_80", True, False, False),
        ("sm_86", True, False, False),
        ("sm_89", True, True, False),
        ("sm_90", True, True, True),
        ("sm_121", True, True, True),
        ("gfx942", False, False, False),
        ("gfx950", False, True, False),
        ("cpu", False, False, False),
    ],
)
def test_a_target_gets_what_its_hardware_has(target, native_float, native_fp8, use_pdl):
    variant = config.choose(replace(WORKLOAD, target=target), config.CONTIGUOUS, 1)
    constants = dict(variant.constants)
    assert constants["NATIVE_FLOAT"] is native_float
    assert constants["NATIVE_FP8"] is native_fp8
    assert constants["USE_PDL"] is variant.use_pdl is use_pdl


def test_only_the_contiguous_layout_bakes_strides_in_and_only_aligned_ones_use_words():
    contiguous, strided, unaligned = (dict(config.choose(WORKLOAD, layout, 1).constants) for layout in config.LAYOUTS)
    assert (contiguous["q_token_stride"], contiguous["q_head_stride"], contiguous["cache_stride"]) == (8192, 128, 64)
    assert "q_token_stride" not in strided
    assert strided["WORDS"]
    assert not unaligned["WORDS"]
    assert config.choose(WORKLOAD, config.UNALIGNED, 1).divisible == ()
    assert ("cache_stride", 4) in config.choose(WORKLOAD, config.STRIDED, 1).divisible
    bf16 = replace(WORKLOAD, cos_sin_cache_dtype="bfloat16")
    assert ("cache_stride", 8) in config.choose(bf16, config.STRIDED, 1).divisible


def test_labels_tell_variants_apart():
    variants = config.all_variants(WORKLOAD)
    assert len({variant.label for variant in variants}) == len(variants)
