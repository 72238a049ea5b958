"""The variant choice: one function for launch and warmup, complete over T, valid for every shape of the contract."""

from __future__ import annotations

import itertools

import pytest

from iq_kernels_cute import _abi
from iq_kernels_cute.indexer_q import config

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")


def test_every_workload_has_valid_variants(make_workload):
    shapes = itertools.product(_abi.OPS, (1, 2, 3, 5, 8, 24, 32, 64, 96, 128, 130), _abi.HEAD_DIMS, _abi.ROPE_STYLES)
    for op, num_heads, head_dim, style in shapes:
        for rope_dim in range(_abi.ROPE_DIM_MULTIPLE, head_dim + 1, _abi.ROPE_DIM_MULTIPLE):
            for target in TARGETS[::3]:
                workload = make_workload(
                    op=op, num_heads=num_heads, head_dim=head_dim, rope_dim=rope_dim, rope_style=style, target=target
                )
                for variant in config.variants(workload):
                    assert variant.problem() is None, (variant, variant.problem())


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("num_heads", [1, 5, 8, 64])
def test_what_launch_chooses_warmup_compiles(make_workload, op, num_heads):
    workload = make_workload(op=op, num_heads=num_heads)
    warmed = set(config.variants(workload))
    chosen = set()
    for dense in (True, False):
        limits = [limit for limit, _ in config.schedule(workload, dense)]
        assert limits == sorted(set(limits))
        assert limits[-1] == config.MAX_ROWS // num_heads
        for tokens in {1, 2, 511, 512, 513, 65_536, *limits, *(limit + 1 for limit in limits[:-1])}:
            chosen.add(config.choose(workload, tokens, dense))
    assert chosen == warmed


def test_the_common_shapes_keep_the_wide_path(make_workload):
    for num_heads in (8, 32, 64):
        variant = config.choose(make_workload(num_heads=num_heads), 65_536, dense=True)
        assert variant.vector * variant.chunks >= 16


def test_heads_a_thread_divide_the_heads():
    for num_heads in range(1, 200):
        for wanted in range(1, 9):
            found = config.heads_per_thread(num_heads, wanted)
            assert num_heads % found == 0
            assert found <= wanted
            assert not any(num_heads % k == 0 for k in range(found + 1, min(wanted, num_heads) + 1))


@pytest.mark.parametrize(
    ("target", "arch"),
    [
        ("sm_80", "sm_80"), ("sm_89", "sm_89"), ("sm_90", "sm_90a"), ("sm_100", "sm_100a"), ("sm_121", "sm_121a"),
        ("sm_90a", "sm_90a"), ("sm_100f", "sm_100f"),
    ],
)  # fmt: skip
def test_compile_arch(target, arch):
    assert config.compile_arch(target) == arch
    assert config.capability_of(arch) == int(target[3:].rstrip("af"))


def test_problem_names_what_does_not_fit(make_workload):
    import dataclasses

    good = config.choose(make_workload(), 1, dense=True)
    assert good.problem() is None
    for change, words in (
        ({"vector": 2}, "vector 2"),
        ({"chunks": 3}, "chunks 3"),
        ({"head_dim": 256, "vector": 4, "chunks": 1}, "at most a warp"),
        ({"threads": 48}, "whole warps"),
        ({"heads_per_thread": 3}, "do not divide"),
        ({"rope_style": "neox", "rope_dim": 16, "vector": 16, "chunks": 1}, "no multiple of the vector"),
        ({"op": "indexer_q_mxfp4", "head_dim": 32, "chunks": 2, "vector": 4}, "smaller than"),
        ({"arch": "sm_89", "pdl": True}, "sm_90"),
    ):
        assert words in (dataclasses.replace(good, **change).problem() or ""), change
