"""What the lanes of a warp do together, on hand-written PTX: shuffles, votes, elections, reductions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.errors import ExecutionError
from tests.ptx.programs import run, words

STORE = "st.global.u32 [%rd3], %r9; ret;"


SHUFFLES = {
    "bfly": (5, 31, lambda i: (i ^ 5, True)),
    "up": (3, 0, lambda i: (i - 3, i >= 3)),
    "down": (3, 31, lambda i: (i + 3, i + 3 < 32)),
    "idx": (9, 31, lambda i: (9, True)),
}


@pytest.mark.parametrize("mode", SHUFFLES)
def test_shuffle(mode: str) -> None:
    offset, clamp, partner = SHUFFLES[mode]
    got = words(
        f"""
        mad.lo.u32 %r1, %r0, %r0, 5;
        shfl.sync.{mode}.b32 %r9|%p1, %r1, {offset}, {clamp}, -1;
        @%p1 add.u32 %r9, %r9, 100000;
        {STORE}"""
    )
    want = []
    for lane in range(32):
        source_lane, inside = partner(lane)
        chosen = source_lane if inside else lane
        want.append(chosen * chosen + 5 + 100000 * inside)
    assert got.tolist() == want


@pytest.mark.parametrize("mode", SHUFFLES)
def test_shuffle_within_segments(mode: str) -> None:
    """A mask in bits 8 to 12 of the clamp splits the warp in segments of 8 lanes."""
    segment = 0x1800
    clamp = segment | (0 if mode == "up" else 31)
    got = words(f"shfl.sync.{mode}.b32 %r9|%p1, %r0, 2, {clamp}, -1; {STORE}")
    want = []
    for lane in range(32):
        low = lane // 8 * 8
        other = {"bfly": lane ^ 2, "up": lane - 2, "down": lane + 2, "idx": low + 2}[mode]
        want.append(other if low <= other < low + 8 else lane)
    assert got.tolist() == want


def test_two_halves_shuffle_on_their_own() -> None:
    """Half-warps with their own masks, at the same shuffle in different iterations."""
    got = words(
        f"""
        setp.lt.u32 %p1, %r0, 16;
        selp.b32 %r1, 0xffff, 0xffff0000, %p1;
        @%p1 bra GO;
        add.u32 %r0, %r0, 0;
    GO:
        shfl.sync.bfly.b32 %r9, %r0, 1, 31, %r1;
        {STORE}"""
    )
    assert (got == (np.arange(32) ^ 1)).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "setp.lt.u32 %p1, %r0, 31; @%p1 shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1; ret;",
            r"thread \(31, 0, 0\) has ended",
        ),
        ("setp.eq.u32 %p1, %r0, 3; @%p1 ret; shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1; ret;", r"\(3, 0, 0\) has ended"),
        ("shfl.sync.bfly.b32 %r9, %r0, 1, 31, 0x7fffffff; ret;", r"\(31, 0, 0\) is not in its own membermask"),
        (
            "setp.eq.u32 %p1, %r0, 0; @%p1 ret; shfl.sync.idx.b32 %r9, %r0, 0, 31, 0xfffffffe; ret;",
            "from lane 0, which",
        ),
        ("setp.eq.u32 %p1, %r0, 3; @%p1 bar.sync 0; shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1; ret;", "waits for threads"),
    ],
)
def test_a_lane_that_does_not_take_part(body: str, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        run(body)


def test_lanes_past_the_end_of_a_block_do_not_exist() -> None:
    with pytest.raises(ExecutionError, match="does not exist"):
        run("shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1; ret;", threads=40)


def test_votes_and_elections() -> None:
    got = words(
        f"""
        setp.lt.u32 %p1, %r0, 5;
        vote.sync.any.pred %p2, %p1, -1;
        vote.sync.all.pred %p3, %p1, -1;
        vote.sync.uni.pred %p4, !%p1, -1;
        vote.sync.ballot.b32 %r1, !%p1, -1;
        elect.sync %r2|%p5, -1;
        selp.b32 %r9, 1, 0, %p2;
        @%p3 add.u32 %r9, %r9, 2;
        @%p4 add.u32 %r9, %r9, 4;
        @%p5 add.u32 %r9, %r9, 8;
        add.u32 %r9, %r9, %r1;
        {STORE}"""
    )
    expected = np.full(32, (0xFFFFFFE0 + 1) % 2**32)
    expected[0] += 8
    assert (got == expected).all()


REDUCTIONS = {
    "add.s32": lambda v: v.sum(),
    "min.s32": lambda v: v.min(),
    "max.s32": lambda v: v.max(),
    "min.u32": lambda v: v.astype(np.uint32).min(),
    "and.b32": np.bitwise_and.reduce,
    "or.b32": np.bitwise_or.reduce,
    "xor.b32": np.bitwise_xor.reduce,
}


@pytest.mark.parametrize("operation", REDUCTIONS)
@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0x00FF00F0])
def test_reductions(operation: str, mask: int) -> None:
    values = np.random.default_rng(1).integers(-(2**31), 2**31, 32).astype(np.int32)
    members = (mask >> np.arange(32) & 1).astype(bool)
    got = words(
        f"""
        add.u64 %rd4, %rd0, %rd2; ld.global.b32 %r1, [%rd4];
        mov.u32 %r9, 0;
        mov.u32 %r2, 1; shl.b32 %r2, %r2, %r0; and.b32 %r2, %r2, {mask}; setp.ne.u32 %p1, %r2, 0;
        @%p1 redux.sync.{operation} %r9, %r1, {mask};
        {STORE}""",
        given=values,
    )
    want = np.asarray(REDUCTIONS[operation](values[members])).astype(np.int64) % 2**32
    assert (got == np.where(members, want, 0)).all()


def test_float_reduction() -> None:
    values = np.array([1.5, -3.0, np.nan, 0.0] * 8, np.float32)
    load = "add.u64 %rd4, %rd0, %rd2; ld.global.b32 %r1, [%rd4];"
    for opcode, want in (("max.f32", 0x3FC00000), ("max.abs.f32", 0x40400000), ("max.NaN.f32", 0x7FFFFFFF),
                         ("min.f32", 0xC0400000), ("min.abs.NaN.f32", 0x7FFFFFFF)):  # fmt: skip
        assert (words(f"{load} redux.sync.{opcode} %r9, %r1, -1; {STORE}", given=values) == want).all()
