"""Races in shared memory: each missing barrier is caught, whatever order the interpreter runs the threads in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.errors import MemoryAccessError
from tests.ptx.programs import run, words

# Before each body: %r1 the thread's own word in shared memory, %r2 its neighbour's, 32 lanes on: of another warp.
PLACES = """
    shl.b32 %r1, %r0, 2; xor.b32 %r2, %r1, {distance};
"""
NEIGHBOUR, OTHER_WARP = 4, 128
BARRIERS = {"": (False, False), "bar.warp.sync -1;": (True, False), "bar.sync 0;": (True, True)}
STORE = "st.global.u32 [%rd3], %r9; ret;"


def both(distance: int, body: str) -> np.ndarray:
    return words(PLACES.format(distance=distance) + body + STORE, threads=64, shared=256)


@pytest.mark.parametrize("distance", [NEIGHBOUR, OTHER_WARP])
@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_read_after_a_write(barrier: str, distance: int) -> None:
    body = f"st.shared.u32 [%r1], %r0; {barrier} ld.shared.u32 %r9, [%r2];"
    if BARRIERS[barrier][distance == OTHER_WARP]:
        assert (both(distance, body) == np.arange(64) ^ distance // 4).all()
        return
    with pytest.raises(MemoryAccessError, match=r"line \d+: ld\.shared.* thread \(0, 0, 0\) reads a byte written by"):
        both(distance, body)


@pytest.mark.parametrize("distance", [NEIGHBOUR, OTHER_WARP])
@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_write_after_a_read(barrier: str, distance: int) -> None:
    body = f"""st.shared.u32 [%r1], %r0; bar.sync 0; ld.shared.u32 %r9, [%r2]; {barrier}
        mov.u32 %r3, 7; st.shared.u32 [%r1], %r3;"""
    if BARRIERS[barrier][distance == OTHER_WARP]:
        assert (both(distance, body) == np.arange(64) ^ distance // 4).all()
        return
    message = (
        rf"st\.shared.* thread \(0, 0, 0\) writes a byte that .* thread \({distance // 4}, 0, 0\) read at line \d+"
    )
    with pytest.raises(MemoryAccessError, match=message):
        both(distance, body)


@pytest.mark.parametrize("distance", [NEIGHBOUR, OTHER_WARP])
@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_write_after_a_write(barrier: str, distance: int) -> None:
    body = f"""mov.u32 %r9, 1; st.shared.u32 [%r1], %r9; {barrier} st.shared.u32 [%r2], %r9;"""
    if BARRIERS[barrier][distance == OTHER_WARP]:
        both(distance, body)
        return
    with pytest.raises(MemoryAccessError, match=r"writes a byte written by .* at line"):
        both(distance, body)


def test_a_thread_needs_no_barrier_for_its_own_bytes() -> None:
    body = """st.shared.u32 [%r1], %r0; ld.shared.u32 %r9, [%r1]; add.u32 %r9, %r9, 1; st.shared.u32 [%r1], %r9;
        ld.shared.u32 %r9, [%r1];"""
    assert (both(NEIGHBOUR, body) == np.arange(1, 65)).all()


READ_BY_ALL = """
    setp.eq.u32 %p1, %r0, {writer};
    @%p1 st.shared.u32 [0], %r0; bar.sync 0; ld.shared.u32 %r9, [0]; {barrier}
    @%p1 st.shared.u32 [0], %r2; ret;
"""


@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize("barrier", BARRIERS)
def test_a_byte_that_all_read(barrier: str, threads: int) -> None:
    """The writer is one of the readers; a barrier of its warp does not cover the other warp's."""
    body = READ_BY_ALL.format(writer=9, barrier=barrier).replace("%r2", "%r0")
    if BARRIERS[barrier][threads == 64]:
        run(body, threads=threads, shared=256)
        return
    with pytest.raises(MemoryAccessError, match=r"thread \(9, 0, 0\) writes a byte that several threads read"):
        run(body, threads=threads, shared=256)


def test_readers_of_two_warps_one_after_the_other() -> None:
    """Warp 0 reads, passes its barrier and writes; warp 1 has read in between, in the same interval of the block."""
    body = """
        setp.eq.u32 %p1, %r0, 0; setp.lt.u32 %p2, %r0, 32; setp.eq.u32 %p3, %r0, 40;
        @%p1 st.shared.u32 [0], %r0; bar.sync 0;
        @%p2 ld.shared.u32 %r9, [0];
        {other}
        bar.warp.sync -1;
        @%p1 st.shared.u32 [0], %r0; ret;"""
    run(body.format(other=""), threads=64, shared=256)
    for other in ("@%p3 ld.shared.u32 %r9, [0];", "@%p3 ld.shared.u32 %r9, [0]; bar.warp.sync -1;"):
        with pytest.raises(MemoryAccessError, match=r"thread \(0, 0, 0\) writes a byte that several threads read"):
            run(body.format(other=other), threads=64, shared=256)


def test_a_reader_before_the_last_barrier_is_forgotten() -> None:
    """Only the thread that has read since the barrier is named, and it may write itself."""
    body = """
        setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r0, {reader}; setp.eq.u32 %p3, %r0, {writer};
        @%p1 st.shared.u32 [0], %r0; {barrier} ld.shared.u32 %r9, [0]; {barrier}
        @%p2 ld.shared.u32 %r9, [0];
        @%p3 st.shared.u32 [0], %r0; ret;"""
    for barrier in ("bar.warp.sync -1;", "bar.sync 0;"):
        run(body.format(reader=5, writer=5, barrier=barrier), shared=256)
        with pytest.raises(
            MemoryAccessError, match=r"thread \(6, 0, 0\) writes a byte that .* thread \(5, 0, 0\) read"
        ):
            run(body.format(reader=5, writer=6, barrier=barrier), shared=256)


def test_a_barrier_of_some_lanes_orders_nothing_here() -> None:
    """The interpreter counts barriers of whole warps alone, and rather objects than lets a race pass."""
    body = """st.shared.u32 [%r1], %r0;
        mov.u32 %r4, %laneid; setp.lt.u32 %p1, %r4, 16; selp.b32 %r4, 0xffff, 0xffff0000, %p1;
        bar.warp.sync {mask}; ld.shared.u32 %r9, [%r2];"""
    assert (both(NEIGHBOUR, body.replace("{mask}", "-1")) == np.arange(64) ^ 1).all()
    with pytest.raises(MemoryAccessError, match="reads a byte written by"):
        both(NEIGHBOUR, body.replace("{mask}", "%r4"))


def test_warps_that_loop_different_times() -> None:
    """A loop whose count is the warp's: each pass exchanges words within the warp, with its barriers inside."""
    body = """
        shr.u32 %r3, %r0, 5; mad.lo.u32 %r3, %r3, 3, 1;
        mov.u32 %r9, %r0; mov.u32 %r4, 0;
    LOOP:
        st.shared.u32 [%r1], %r9;
        {first}
        ld.shared.u32 %r9, [%r2];
        {second}
        add.u32 %r9, %r9, 100;
        add.u32 %r4, %r4, 1;
        setp.lt.u32 %p1, %r4, %r3;
        @%p1 bra LOOP;
        bar.sync 0;
    """
    barrier = "bar.warp.sync -1;"
    thread = np.arange(128)
    times = thread // 32 * 3 + 1
    program = PLACES.format(distance=NEIGHBOUR) + body + STORE
    got = words(program.format(first=barrier, second=barrier), threads=128, shared=512)
    assert (got == (thread ^ times % 2) + 100 * times).all()
    with pytest.raises(MemoryAccessError, match="reads a byte written by"):
        words(program.format(first="", second=barrier), threads=128, shared=512)
    with pytest.raises(MemoryAccessError, match=r"writes a byte that .* thread \(\d+, 0, 0\) read at line"):
        words(program.format(first=barrier, second=""), threads=128, shared=512)
