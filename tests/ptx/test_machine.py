"""The machine on hand-written PTX: control flow, barriers, vectors, scopes, undefined registers, errors, fusing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.errors import ExecutionError, PtxSyntaxError, UnknownInstructionError
from tests.ptx.parse import parse
from tests.ptx.programs import run, source, words
from tests.ptx.special import special_registers

STORE = "st.global.u32 [%rd3], %r9; ret;"


def test_divergence_and_reconvergence() -> None:
    """Both sides of a branch, then all lanes together again: the vote after it needs the whole warp."""
    got = words(
        f"""
        and.b32 %r1, %r0, 1;
        setp.eq.u32 %p1, %r1, 0;
        @%p1 bra EVEN;
        add.u32 %r9, %r0, 1000;
        bra JOIN;
    EVEN:
        mul.lo.u32 %r9, %r0, 3;
    JOIN:
        vote.sync.ballot.b32 %r2, %p1, -1;
        add.u32 %r9, %r9, %r2;
        {STORE}"""
    )
    lane = np.arange(32)
    assert (got == (np.where(lane % 2, lane + 1000, lane * 3) + 0x55555555).astype(np.uint32)).all()


def test_loops_of_different_length() -> None:
    """Each lane iterates as often as its number says; lanes that are done wait at the exit."""
    got = words(
        f"""
        mov.u32 %r9, 0;
        mov.u32 %r1, 0;
    LOOP:
        setp.ge.u32 %p1, %r1, %r0;
        @%p1 bra DONE;
        add.u32 %r1, %r1, 1;
        add.u32 %r9, %r9, %r1;
        bra.uni LOOP;
    DONE:
        activemask.b32 %r2;
        add.u32 %r9, %r9, %r2;
        {STORE}"""
    )
    lane = np.arange(32)
    assert (got == (lane * (lane + 1) // 2 + 0xFFFFFFFF) % 2**32).all()


def test_predicates_hold_lanes_back() -> None:
    got = words(
        f"""
        setp.lt.u32 %p1, %r0, 10;
        mov.u32 %r9, 7;
        @%p1 mov.u32 %r9, 1;
        @!%p1 add.u32 %r9, %r9, 2;
        @!%p1 bra SKIP;
        add.u32 %r9, %r9, 100;
    SKIP:
        {STORE}"""
    )
    assert (got == np.where(np.arange(32) < 10, 101, 9)).all()


def test_early_return() -> None:
    body = f"setp.ge.u32 %p1, %r0, 20; @%p1 ret; mov.u32 %r9, %r0; {STORE}"
    assert (words(body, out_bytes=80) == np.arange(20)).all()


def test_grid_and_block_registers() -> None:
    got = words(
        f"""
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %nctaid.x; mov.u32 %r4, %laneid;
        mad.lo.u32 %r5, %r1, %r2, %r0;
        mul.wide.u32 %rd2, %r5, 4;
        add.u64 %rd3, %rd1, %rd2;
        shl.b32 %r9, %r3, 24;
        bfi.b32 %r9, %r1, %r9, 16, 8;
        bfi.b32 %r9, %r4, %r9, 8, 8;
        or.b32 %r9, %r9, %r2;
        {STORE}""",
        threads=48,
        blocks=3,
    )
    thread = np.arange(48 * 3)
    assert (got == (3 << 24 | thread // 48 << 16 | thread % 48 % 32 << 8 | 48)).all()


def test_special_registers() -> None:
    values = special_registers((2, 3, 1), (4, 2, 5), 64)
    assert len(values["%tid.x"]) == 6 * 64
    lane = 4 * 64 + 29  # block 4 of 2 x 3, thread 29 of 4 x 2 x 5
    got = {name: int(value[lane]) for name, value in values.items()}
    assert [got[f"%tid.{axis}"] for axis in "xyz"] == [1, 1, 3]
    assert [got[f"%ctaid.{axis}"] for axis in "xyz"] == [0, 2, 0]
    assert [got[f"%ntid.{axis}"] for axis in "xyz"] == [4, 2, 5]
    assert [got[f"%nctaid.{axis}"] for axis in "xyz"] == [2, 3, 1]
    assert (got["%laneid"], got["%warpid"], got["%nwarpid"]) == (29, 0, 2)
    masks = {name: got[f"%lanemask_{name}"] for name in ("eq", "lt", "le", "gt", "ge")}
    assert masks == {"eq": 1 << 29, "lt": 2**29 - 1, "le": 2**30 - 1, "gt": 0xC0000000, "ge": 0xE0000000}


def test_shared_memory_and_barrier() -> None:
    """Reverse a block of three warps through shared memory; the last warp has few threads."""
    body = f"""
        .shared .align 4 .b8 buffer[384];
        mov.u32 %r1, buffer;
        mad.lo.u32 %r2, %r0, 4, %r1;
        st.shared.u32 [%r2], %r0;
        %s
        mov.u32 %r3, %ntid.x; sub.u32 %r3, %r3, %r0;
        mad.lo.u32 %r2, %r3, 4, %r1;
        ld.shared.u32 %r9, [%r2+-4];
        {STORE}"""
    assert (words(body.replace("%s", "bar.sync 0;"), threads=70, blocks=1) == np.arange(70)[::-1]).all()
    assert (words(body.replace("%s", "barrier.cta.sync.aligned 0;"), threads=70) == np.arange(70)[::-1]).all()
    with pytest.raises(ExecutionError, match=r"reads a byte written by .* at line"):
        words(body.replace("%s", ""), threads=70)
    with pytest.raises(ExecutionError, match=r"reads a byte written by"):  # a warp's barrier does not order two warps
        words(body.replace("%s", "bar.warp.sync -1;"), threads=64)
    assert (words(body.replace("%s", "bar.warp.sync -1;"), threads=32) == np.arange(32)[::-1]).all()


def test_a_barrier_does_not_wait_for_threads_that_ended() -> None:
    body = f"setp.ge.u32 %p1, %r0, 40; @%p1 ret; bar.sync 0; mov.u32 %r9, %r0; {STORE}"
    assert (words(body, threads=64, out_bytes=160) == np.arange(40)).all()


def test_a_barrier_that_some_skip_forever() -> None:
    body = "setp.lt.u32 %p1, %r0, 40; @%p1 bar.sync 0; bar.sync 1; ret;"
    with pytest.raises(ExecutionError, match=r"waits for threads that do not take part: .* waits at line"):
        run(body, threads=64)


def test_generic_addresses_reach_shared_memory() -> None:
    body = f"""
        .shared .align 4 .b8 buffer[128];
        mov.u64 %rd4, buffer; cvta.shared.u64 %rd5, %rd4; add.u64 %rd6, %rd5, %rd2;
        st.u32 [%rd6], %r0;
        cvta.to.shared.u64 %rd7, %rd6; ld.shared.u32 %r9, [%rd7];
        {STORE}"""
    assert (words(body) == np.arange(32)).all()


def test_matrices_go_through_shared_memory() -> None:
    """ldmatrix and stmatrix against the layout of the ISA: lane t holds row t/4, columns 2(t%4) and the next."""
    values = np.random.default_rng(2).integers(0, 2**16, (2, 8, 8)).astype(np.uint16)  # two matrices, row by row
    prologue = """
        .shared .align 16 .b8 buffer[256];
        ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 8;
        add.u64 %rd3, %rd1, %rd2; add.u64 %rd4, %rd0, %rd2; mov.u32 %r1, buffer;
        and.b32 %r2, %r0, 15; mad.lo.u32 %r2, %r2, 16, %r1; mad.lo.u32 %r3, %r0, 8, %r1;
        ld.global.v2.b32 {%r4, %r5}, [%rd4];
    """
    through = "st.shared.v2.b32 [%r3], {%r4, %r5}; bar.warp.sync -1;"
    back = "st.global.v2.b32 [%rd3], {%r6, %r7}; ret;"
    lane = np.arange(32)
    rows = lane[:, None] // 4, 2 * (lane[:, None] % 4) + np.arange(2)
    columns = rows[1], np.broadcast_to(rows[0], (32, 2))
    for trans, (row, column) in (("", rows), (".trans", columns)):
        load = f"ldmatrix.sync.aligned.m8n8.x2{trans}.shared.b16 {{%r6, %r7}}, [%r2];"
        got = run(through + load + back, given=values.ravel(), out_bytes=256, prologue=prologue).view(np.uint16)
        want = np.stack([values[0][row, column], values[1][row, column]], axis=1)
        assert (got.reshape(32, 2, 2) == want).all()
        store = f"stmatrix.sync.aligned.m8n8.x2{trans}.shared::cta.b16 [%r2], {{%r4, %r5}}; bar.warp.sync -1;"
        load = "ld.shared.v2.b32 {%r6, %r7}, [%r3];"
        got = run(store + load + back, given=want.ravel(), out_bytes=256, prologue=prologue).view(np.uint16)
        assert (got == values.ravel()).all()


def test_vectors_scopes_and_sinks() -> None:
    got = words(
        f"""
        add.u64 %rd4, %rd0, 0;
        ld.global.v4.b32 {{%r1, _, %r3, %r4}}, [%rd4+16];
        {{ .reg .b16 low, high; .reg .b32 %r1;
           mov.b32 {{low, high}}, %r3; mov.b32 %r1, {{high, low}}; mov.b32 %r5, %r1; }}
        mov.b64 %rd5, {{%r4, %r1}};
        mov.b64 {{_, %r6}}, %rd5;
        xor.b32 %r9, %r5, %r6;
        {STORE}""",
        given=np.arange(8, dtype=np.uint32) * 0x01020304,
    )
    values = np.arange(8, dtype=np.uint64) * 0x01020304
    swapped = (values[6] >> 16 | values[6] << 16) & 0xFFFFFFFF
    assert (got == (swapped ^ values[4])).all()


def test_widths_of_registers_are_checked() -> None:
    with pytest.raises(ExecutionError, match=r"register %h1 is \.b16, the instruction writes \.u32"):
        run("add.u32 %h1, %r0, 1; ret;")
    with pytest.raises(ExecutionError, match=r"register %rd0 is \.b64, the instruction reads \.u32"):
        run("add.u32 %r1, %rd0, 1; ret;")
    assert (words(f"mov.u32 %r1, 0xfffe; cvt.u16.u32 %h1, %r1; cvt.s32.s16 %r9, %h1; {STORE}") == 0xFFFFFFFE).all()
    got = words(f"ld.global.s8 %r1, [%rd0]; ld.global.u8 %r2, [%rd0]; add.u32 %r9, %r1, %r2; {STORE}",
                given=np.array([0x80], np.uint8))  # fmt: skip
    assert (got == 0).all()


def test_a_register_that_was_not_written() -> None:
    with pytest.raises(ExecutionError, match=r"thread \(4, 0, 0\) reads %r9, which it did not write"):
        words(f"setp.lt.u32 %p1, %r0, 4; @%p1 mov.u32 %r9, 1; {STORE}")
    with pytest.raises(ExecutionError, match=r"thread \(0, 0, 0\) reads %r9, which nothing wrote"):
        words("bra USE; SET: mov.u32 %r9, 1; USE: st.global.u32 [%rd3], %r9; ret;")
    noise = words(f"add.u32 %r9, %r8, 0; {STORE}")  # nothing in the program writes %r8: it holds anything
    assert len(set(noise.tolist())) > 30


def test_what_is_unknown_is_an_error() -> None:
    with pytest.raises(UnknownInstructionError, match=r"line \d+: unknown instruction foo\.b32"):
        run("foo.b32 %r1, %r0; ret;")
    with pytest.raises(UnknownInstructionError, match=r"unknown instruction add\.cc\.u32: modifier \.cc"):
        run("add.cc.u32 %r1, %r0, 1; ret;")
    with pytest.raises(UnknownInstructionError, match=r"ld\.global\.L3::maybe\.u32"):
        run("ld.global.L3::maybe.u32 %r1, [%rd0]; ret;")
    with pytest.raises(PtxSyntaxError, match=r"register %r99 is not declared"):
        parse(source("add.u32 %r99, %r0, 1; ret;"))
    with pytest.raises(PtxSyntaxError, match="line 1: cannot read"):
        parse("§")
    with pytest.raises(ExecutionError, match="not a label"):
        run("bra NOWHERE; ret;")
    with pytest.raises(ExecutionError, match="past the end"):
        run("add.u32 %r1, %r0, 1;")
    with pytest.raises(ExecutionError, match="reached a trap"):
        run("trap;")


def test_an_error_names_the_line() -> None:
    text = source("ret;\nbar.red.popc.u32 %r1, 0, %p1;")
    line = next(number for number, part in enumerate(text.split("\n"), 1) if "bar.red" in part)
    with pytest.raises(UnknownInstructionError, match=f"line {line}: "):
        run("ret;\nbar.red.popc.u32 %r1, 0, %p1;")


FUSED = """
    add.u64 %rd4, %rd0, 0;
    ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd4];
    mul{mul}.f32 %r5, %r1, %r2;
    {add}.f32 %r9, {left}, {right};
"""


@pytest.mark.parametrize(
    ("add", "left", "right", "sign"),
    [
        ("add", "%r5", "%r3", (1, 1)),
        ("add", "%r3", "%r5", (1, 1)),
        ("sub", "%r5", "%r3", (1, -1)),
        ("sub", "%r3", "%r5", (-1, 1)),
    ],
)
def test_contraction(add: str, left: str, right: str, sign: tuple[int, int]) -> None:
    """ptxas may fuse a mul and an add without .rn; the interpreter then does, and never otherwise."""
    values = np.array([1 + 2**-12, 1 + 2**-12, -(1 + 2**-11), 0], np.float32)
    if sign != (1, 1):
        values[2] = -values[2]
    a, b, c = (float(value) for value in values[:3])
    fused = np.float32(sign[0] * (a * b) + sign[1] * c)
    separate = np.float32(sign[0] * float(np.float32(a * b)) + sign[1] * c)
    assert fused != separate

    def result(mul: str, name: str, contract: bool = True) -> np.ndarray:
        body = FUSED.format(mul=mul, add=name, left=left, right=right) + STORE
        return words(body, given=values, contract=contract).view(np.float32)

    assert (result("", add) == fused).all()
    assert (result("", add, contract=False) == separate).all()
    assert (result(".rn", add) == separate).all()
    assert (result("", f"{add}.rn") == separate).all()
