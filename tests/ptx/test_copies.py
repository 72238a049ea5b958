"""Asynchronous copies to shared memory: what arrives, when it may be read, and every way to read or write too early."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.errors import ExecutionError, MemoryAccessError, UnknownInstructionError
from tests.ptx.programs import run, words

INPUT = np.random.default_rng(5).integers(0, 256, 2048).astype(np.uint8)

# Each thread owns 16 bytes of input (%rd4), of shared memory (%r1) and of the output (%rd3); %r2 is its neighbour's.
PROLOGUE = """
    ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 16; add.u64 %rd3, %rd1, %rd2; add.u64 %rd4, %rd0, %rd2;
    shl.b32 %r1, %r0, 4; xor.b32 %r2, %r1, 16;
"""
COPY = "cp.async.cg.shared.global [%r1], [%rd4], 16;"
OUT = "ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r1]; st.global.v4.b32 [%rd3], {%r4, %r5, %r6, %r7}; ret;"
NEIGHBOUR = OUT.replace("%r1", "%r2")
MINE = INPUT[:512]
NEIGHBOURS = MINE.reshape(16, 2, 16)[:, ::-1].ravel()


def copied(body: str, given: np.ndarray = INPUT, shared: int = 512, threads: int = 32) -> np.ndarray:
    return run(body, given=given, shared=shared, threads=threads, out_bytes=16 * threads, prologue=PROLOGUE)


FORMS = (
    "cp.async.cg.shared.global [%r1], [%rd4], 16;",
    "cp.async.ca.shared::cta.global [%r1], [%rd4], 16;",
    "cp.async.cg.shared.global.L2::128B [%r1+0], [%rd4+0], 16;",
    "cp.async.ca.shared::cta.global.L2::256B [%r1], [%rd4], 16, 16;",
    "mov.u32 %r3, 16; cp.async.cg.shared::cta.global.L2::64B [%r1], [%rd4], 16, %r3;",
    "createpolicy.fractional.L2::evict_first.b64 %rd5, 1.0;"
    " cp.async.cg.shared.global.L2::cache_hint.L2::128B [%r1], [%rd4], 16, %rd5;",
    "createpolicy.fractional.L2::evict_first.b64 %rd5, 1.0;"
    " cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd4], 16, 16, %rd5;",
    "setp.eq.u32 %p1, 0, 1; cp.async.ca.shared.global [%r1], [%rd4], 16, %p1;",
    "cp.async.ca.shared.global [%r1], [%rd4], 8; cp.async.ca.shared.global [%r1+8], [%rd4+8], 8;",
    " ".join(f"cp.async.ca.shared.global [%r1+{at}], [%rd4+{at}], 4;" for at in (0, 4, 8, 12)),
)
WAITS = ("cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 0;")


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("copy", FORMS)
def test_each_form_copies(copy: str, wait: str) -> None:
    assert (copied(copy + wait + OUT) == MINE).all()
    assert (copied(copy + wait + "bar.warp.sync -1;" + NEIGHBOUR) == NEIGHBOURS).all()


@pytest.mark.parametrize("size", [4, 8, 16])
def test_what_the_source_lacks_is_zero(size: int) -> None:
    """Each thread's source has another size; the bytes behind it are not read: the input ends there."""
    for count in range(size + 1):
        given = INPUT[: 16 * 31 + count]
        body = f"""mov.u64 %rd6, 0; st.shared.v2.b64 [%r1], {{%rd6, %rd6}}; setp.eq.u32 %p1, %r0, 31;
            selp.b32 %r3, {count}, {size}, %p1; cp.async.ca.shared.global [%r1], [%rd4], {size}, %r3;
            cp.async.wait_all; """
        want = MINE.copy().reshape(32, 16)
        want[:, size:] = 0
        want[31, count:] = 0
        assert (copied(body + OUT, given=given) == want.ravel()).all()
        if count < size:
            with pytest.raises(MemoryAccessError, match=r"thread \(31, 0, 0\) reads 1 bytes out of bounds"):
                copied(body.replace(f" {count},", f" {count + 1},") + OUT, given=given)


def test_a_source_that_is_ignored_is_not_read() -> None:
    body = """setp.gt.u32 %p1, %r0, 3; @%p1 mov.u64 %rd4, 64; cp.async.cg.shared.global [%r1], [%rd4], 16, %p1;
        cp.async.wait_all; """
    want = np.where(np.arange(512) < 64, MINE, 0)
    assert (copied(body + OUT) == want).all()
    with pytest.raises(MemoryAccessError, match=r"thread \(4, 0, 0\) reads 16 bytes out of bounds at 0x40"):
        copied(body.replace("16, %p1", "16") + OUT)


GROUPS = """
    cp.async.cg.shared.global [%r1], [%rd4], 16; cp.async.commit_group;
    cp.async.cg.shared.global [%r1+512], [%rd4+512], 16; cp.async.commit_group;
    {empty}
    cp.async.cg.shared.global [%r1+1024], [%rd4+1024], 16; cp.async.commit_group;
    cp.async.wait_group {most};
    ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r1+{at}]; st.global.v4.b32 [%rd3], {{%r4, %r5, %r6, %r7}}; ret;
"""


@pytest.mark.parametrize("empty", ["", "cp.async.commit_group;"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_groups_complete_in_order(number: int, empty: str) -> None:
    """A wait that leaves as many groups under way as were committed behind a copy is enough, and one more is not."""
    behind = 2 - number + bool(empty and number < 2)
    body = GROUPS.replace("{empty}", empty).replace("{at}", str(512 * number)).replace("{{", "{").replace("}}", "}")
    for most in range(behind + 1):
        got = copied(body.replace("{most}", str(most)), shared=1536)
        assert (got == INPUT[512 * number :][:512]).all()
    late = r"line \d+: ld\.shared.* thread \(0, 0, 0\) reads a byte that a copy by .* thread \(0, 0, 0\) at line \d+"
    with pytest.raises(MemoryAccessError, match=late):
        copied(body.replace("{most}", str(behind + 1)), shared=1536)


PENDING = "a copy by block .* at line .* has yet to write"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (COPY + OUT, f"reads a byte that {PENDING}"),
        (COPY + "cp.async.commit_group;" + OUT, f"reads a byte that {PENDING}"),
        (COPY + "cp.async.wait_group 0;" + OUT, f"reads a byte that {PENDING}"),  # it is in no group
        (COPY + "bar.sync 0;" + OUT, f"reads a byte that {PENDING}"),
        (COPY + "st.shared.u32 [%r1], %r0; ret;", f"writes a byte that {PENDING}"),
        (COPY + COPY + "ret;", f"writes a byte that {PENDING}"),  # two copies to one place
        (COPY + WAITS[0] + NEIGHBOUR, r"thread \(0, 0, 0\) reads a byte written by .* thread \(1, 0, 0\) at line"),
        # The barrier must follow the wait: the neighbour's bytes are there once it has waited, not once it has started.
        (COPY + "bar.warp.sync -1;" + WAITS[0] + NEIGHBOUR, "reads a byte written by"),
        ("setp.ne.u32 %p1, %r0, 7;" + COPY + "@%p1 " + WAITS[0] + "bar.warp.sync -1;" + NEIGHBOUR,
         r"thread \(6, 0, 0\) reads a byte that a copy by .* thread \(7, 0, 0\) at line"),
        ("cp.async.cg.shared.global [0], [%rd4], 16; ret;",
         r"copies, in the same instruction, to a byte that .* thread \(31, 0, 0\) copies to"),
        ("cp.async.cg.shared.global [%r2], [%rd4], 16; cp.async.wait_all;" + COPY + "ret;",
         r"thread \(0, 0, 0\) writes a byte written by .* thread \(1, 0, 0\)"),
        ("ret;" + COPY, ""),
    ],
)  # fmt: skip
def test_too_early(body: str, message: str) -> None:
    if not message:
        copied(body)
        return
    with pytest.raises(MemoryAccessError, match=rf"line \d+: .*({message})"):
        copied(body)


def test_a_copy_over_what_another_has_yet_to_read() -> None:
    body = COPY + WAITS[0] + "bar.warp.sync -1; ld.shared.b32 %r9, [%r2]; {barrier}" + COPY + WAITS[0] + OUT
    assert (copied(body.replace("{barrier}", "bar.warp.sync -1;")) == MINE).all()
    with pytest.raises(MemoryAccessError, match=r"cp\.async.* writes a byte that .* thread \(1, 0, 0\) read at line"):
        copied(body.replace("{barrier}", ""))


def test_another_warp_needs_the_blocks_barrier() -> None:
    other = OUT.replace("%r1", "%r3")
    body = COPY + WAITS[0] + "xor.b32 %r3, %r1, 512; {barrier}" + other
    got = copied(body.replace("{barrier}", "bar.sync 0;"), shared=1024, threads=64)
    assert (got == INPUT[:1024].reshape(2, 512)[::-1].ravel()).all()
    with pytest.raises(MemoryAccessError, match="reads a byte written by"):
        copied(body.replace("{barrier}", "bar.warp.sync -1;"), shared=1024, threads=64)


def test_a_thread_may_end_with_copies_under_way() -> None:
    """The ISA does not forbid it; but what they write nobody can read any more."""
    copied(COPY + "ret;")
    left = """setp.eq.u32 %p1, %r0, 1; @%p1 ret; setp.ne.u32 %p2, %r0, 0; cp.async.wait_all; bar.sync 0; @%p2 ret;
        ld.shared.b32 %r9, [16]; ret;"""
    with pytest.raises(
        MemoryAccessError, match=r"thread \(0, 0, 0\) reads a byte that a copy by .* thread \(1, 0, 0\)"
    ):
        copied(COPY + left)


@pytest.mark.parametrize(
    ("copy", "message"),
    [
        (
            "cp.async.cg.shared.global [%r1], [%rd4+2000], 16;",
            r"thread \(3, 0, 0\) reads 16 bytes out of bounds .* input",
        ),
        ("cp.async.cg.shared.global [%r1], [%rd4+8], 16;", "reads 16 bytes at 0x100008, not a multiple of 16"),
        ("cp.async.cg.shared.global [%r1], [%rd4+8], 16, 8;", "copies from 0x100008, not a multiple of 16"),
        ("cp.async.cg.shared.global [8], [%rd4], 16;", "copies to 16 bytes at 0x8, not a multiple of 16"),
        ("cp.async.cg.shared.global [%r1+16], [%rd4], 16;", "out of bounds at byte 512 of 512 of shared memory"),
        ("cp.async.cg.shared.global [%r1], [%rd3], 16;", "reads a byte nobody wrote: byte 0 of output"),
        ("cp.async.ca.shared.global [%r1], [%rd4], 8, 9;", "copies 9 bytes of a source into 8"),
        ("cp.async.cg.shared.global [%r1], [%rd4], 8;", "cp.async.cg copies 16 bytes"),
        ("cp.async.ca.shared.global [%r1], [%rd4], 12;", "cp.async.ca copies 4 or 8 or 16 bytes"),
        ("cp.async.ca.shared.global [%r1], [%rd4], 8, 8, 8;", "expected two addresses"),
    ],
)
def test_wrong_copies(copy: str, message: str) -> None:
    with pytest.raises(ExecutionError, match=rf"line \d+: .*{message}"):
        copied(copy + "ret;")


@pytest.mark.parametrize(
    "text",
    [
        "cp.async.bulk.commit_group;",
        "cp.async.mbarrier.arrive.shared.b64 [%r1];",
        "cp.async.wait_group %r1;",
        "cp.async.wait_group;",
        "cp.async.commit_group 1;",
        "cp.async.cg.shared.global.L2::512B [%r1], [%rd4], 16;",
        "cp.async.cg.shared::cluster.global [%r1], [%rd4], 16;",
    ],
)
def test_unknown_forms(text: str) -> None:
    with pytest.raises(UnknownInstructionError, match=r"line \d+: unknown instruction cp\.async\."):
        copied(text + "ret;")


def test_the_producer_is_waited_for() -> None:
    assert (copied("griddepcontrol.wait;" + COPY + WAITS[0] + OUT) == MINE).all()
    with pytest.raises(ExecutionError, match=r"touches global memory before griddepcontrol\.wait"):
        copied(COPY + WAITS[0] + "griddepcontrol.wait;" + OUT)


def test_shared_symbols_in_registers_of_32_bits() -> None:
    """A static array and the launch's dynamic one behind it, each by its name."""
    body = """
        .shared .align 16 .b8 fixed[520];
        .shared .align 16 .b8 dynamic[];
        mov.u32 %r1, fixed; mov.b32 %r2, dynamic; sub.u32 %r9, %r2, %r1;
        mad.lo.u32 %r3, %r0, 4, %r2; st.shared.u32 [%r3], %r9; ld.shared.u32 %r9, [%r3+{at}];
        st.global.u32 [%rd3], %r9; ret;"""
    assert (words(body.replace("{at}", "0"), shared=128) == 528).all()
    with pytest.raises(ExecutionError, match="out of bounds at byte 656 of 656"):
        words(body.replace("{at}", "4"), shared=128)
