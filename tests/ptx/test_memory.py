"""Every wrong access is caught and named: the PTX line, the thread, the byte and the region."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tests.ptx.errors import ExecutionError, MemoryAccessError
from tests.ptx.machine import Machine
from tests.ptx.memory import Memory, Region
from tests.ptx.parse import parse
from tests.ptx.placement import place, register, result
from tests.ptx.programs import run, source, words
from tests.ptx.syntax import Instruction

INPUT = np.arange(64, dtype=np.uint32)
MINE = "add.u64 %rd4, %rd0, %rd2;"


def test_each_width_loads_and_stores() -> None:
    given = np.random.default_rng(0).integers(0, 256, 32 * 32).astype(np.uint8)
    for width, count, kind, registers in (
        (1, 1, "b8", "%r1"), (2, 1, "b16", "%h1"), (4, 1, "b32", "%r1"), (8, 1, "b64", "%rd5"),
        (4, 2, "b16", "{%h1, %h2}"), (8, 2, "b32", "{%r1, %r2}"), (16, 4, "b32", "{%r1, %r2, %r3, %r4}"),
        (16, 2, "b64", "{%rd5, %rd6}"), (32, 4, "b64", "{%rd5, %rd6, %rd7, %rd8}"),
        (32, 8, "b32", "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}"),
    ):  # fmt: skip
        vector = f".v{count}" if count > 1 else ""
        body = f"""
            mul.wide.u32 %rd2, %r0, {width}; add.u64 %rd3, %rd1, %rd2; add.u64 %rd4, %rd0, %rd2;
            ld.global.L1::no_allocate.L2::128B{vector}.{kind} {registers}, [%rd4];
            st.global.L1::evict_first{vector}.{kind} [%rd3], {registers};
            ret;"""
        got = run(body, given=given, out_bytes=32 * width)
        assert (got == given[: 32 * width]).all(), (width, kind)


def test_cache_policies_are_hints() -> None:
    body = f"""
        createpolicy.fractional.L2::evict_first.b64 %rd5, 1.0;
        {MINE} prefetch.global.L2 [%rd4];
        ld.relaxed.gpu.global.L1::evict_last.L2::cache_hint.b32 %r9, [%rd4], %rd5;
        fence.acq_rel.gpu; membar.gl;
        st.global.cs.b32 [%rd3], %r9; ret;"""
    assert (words(body, given=INPUT) == INPUT[:32]).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{MINE} ld.global.b32 %r1, [%rd4+132]; ret;",
         r"thread \(31, 0, 0\) reads 4 bytes out of bounds at 0x100100, byte 256 of input, which has 256 bytes"),
        ("ld.global.b32 %r1, [%rd0+-4]; ret;", r"thread \(0, 0, 0\) reads 4 bytes out of bounds .* byte -4 of input"),
        ("ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd0+256]; ret;", "out of bounds"),
        ("mov.u64 %rd5, 64; ld.global.b32 %r1, [%rd5]; ret;", "out of bounds at 0x40"),
        ("st.global.b32 [%rd3+4], %r0; ret;", r"thread \(31, 0, 0\) writes 4 bytes out .* byte 128 of output"),
        ("ld.global.b32 %r1, [%rd0+2]; ret;", r"reads 4 bytes at 0x100002, not a multiple of 4"),
        ("ld.global.v2.b32 {%r1, %r2}, [%rd0+4]; ret;", "not a multiple of 8"),
        ("ld.global.v4.b64 {%rd5, %rd6, %rd7, %rd8}, [%rd0+16]; ret;", "not a multiple of 32"),
        ("st.global.v2.b16 [%rd1+2], {%h1, %h1}; ret;", "which nothing wrote|not a multiple of 4"),
        ("ld.global.b32 %r1, [%rd1]; ret;", "reads a byte nobody wrote: byte 0 of output"),
        ("prefetch.global.L2 [%rd0+256]; ret;", r"prefetches 1 bytes out of bounds .* byte 256 of input"),
        ("st.global.b32 [%rd0], %r0; ret;", "writes read-only memory: byte 0 of input"),
        ("st.global.b32 [%rd1], %r0; ret;",
         r"thread \(0, 0, 0\) writes, in the same instruction, a byte written by block .* thread \(31, 0, 0\)"),
        ("setp.eq.u32 %p1, %r0, 5; st.global.b32 [%rd3], %r0; @%p1 st.global.b8 [%rd1+3], %r0; ret;",
         r"thread \(5, 0, 0\) writes a byte written by block .* thread \(0, 0, 0\) at line \d+: byte 3 of output"),
        ("setp.lt.u32 %p1, %r0, 31; st.global.b32 [%rd3], %r0; @%p1 ld.global.b32 %r1, [%rd3+4]; ret;",
         r"thread \(0, 0, 0\) reads a byte written by block \(0, 0, 0\) thread \(1, 0, 0\)"),
        ("st.global.b32 [%rd3], %r0; ld.global.nc.b32 %r1, [%rd3]; ret;", r"which the kernel may write, with \.nc"),
    ],
)  # fmt: skip
def test_wrong_global_accesses(body: str, message: str) -> None:
    with pytest.raises(ExecutionError, match=rf"line \d+: .*({message})"):
        run(body, given=INPUT)


def test_an_access_that_begins_inside_and_ends_outside() -> None:
    body = "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd0+240]; ret;"
    run(body, given=INPUT)
    with pytest.raises(MemoryAccessError, match=r"reads 16 bytes out of bounds .* byte 240 of input, which has 252"):
        run(body, given=INPUT[:63])


def test_a_thread_may_read_and_overwrite_its_own_bytes() -> None:
    body = "st.global.b32 [%rd3], %r0; ld.global.b32 %r1, [%rd3]; add.u32 %r1, %r1, 1; st.global.b32 [%rd3], %r1; ret;"
    assert (words(body) == np.arange(1, 33)).all()


def test_two_blocks_write_one_byte() -> None:
    with pytest.raises(MemoryAccessError, match=r"block \(0, 0, 0\) thread \(0, 0, 0\) writes, .* block \(1, 0, 0\)"):
        run("st.global.b32 [%rd3], %r0; ret;", blocks=2)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ld.shared.b32 %r1, [256]; ret;", "out of bounds at byte 256 of 256"),
        ("ld.shared.b32 %r1, [0]; ret;", "reads a byte nobody wrote"),
        ("mov.u32 %r1, 0; st.shared.b32 [%r1], %r0; ret;", "in the same instruction"),
        ("mul.lo.u32 %r1, %r0, 2; st.shared.b32 [%r1], %r0; ret;", "not a multiple of 4"),
    ],
)
def test_wrong_shared_accesses(body: str, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        run(body, shared=256)


def test_below_the_start_of_a_later_blocks_shared_memory() -> None:
    body = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 1; mov.u64 %rd5, 0; @%p1 ld.shared.b32 %r2, [%rd5+-4]; ret;"
    with pytest.raises(
        ExecutionError, match=r"block \(1, 0, 0\) thread \(0, 0, 0\) is out of bounds at byte \d+ of 256"
    ):
        run(body, shared=256, blocks=2)


def test_a_32_bit_address_and_its_offset_wrap_together() -> None:
    body = """mov.u32 %r1, -64; mad.lo.u32 %r1, %r0, 4, %r1; st.shared.b32 [%r1+64], %r0; ld.shared.b32 %r9, [%r1+64];
        st.global.b32 [%rd3], %r9; ret;"""
    assert (words(body, shared=128) == np.arange(32)).all()
    with pytest.raises(ExecutionError, match="out of bounds at byte 4294967292 of 128"):
        words(body.replace("+64", "+60"), shared=128)


def test_equal_values_may_meet_in_shared_memory() -> None:
    body = "mov.u32 %r1, 7; st.shared.b32 [0], %r1; bar.sync 0; ld.shared.b32 %r9, [0]; st.global.b32 [%rd3], %r9; ret;"
    assert (words(body, shared=256) == 7).all()


def test_parameters_are_bounded() -> None:
    for address, message in (("[p0+8]", "which has 8"), ("[nothing]", "not a parameter"), ("[%rd0]", "by name only")):
        with pytest.raises(ExecutionError, match=message):
            run(f"ld.param.u64 %rd4, {address}; ret;")


def test_constant_tables_are_read_only_memory() -> None:
    text = ".const .align 4 .u32 table[4] = {5, 6, 0x7, -1};\n.global .align 1 .b8 holes[8];\n"
    head, body = source(
        """
        and.b32 %r1, %r0, 3; mul.wide.u32 %rd5, %r1, 4; mov.u64 %rd6, table; add.u64 %rd6, %rd6, %rd5;
        ld.const.b32 %r9, [%rd6]; st.global.b32 [%rd3], %r9;
        setp.gt.u32 %p1, %r0, 40; @%p1 ld.global.b8 %r2, [holes]; ret;"""
    ).split(".visible")
    kernel = parse(f"{head}{text}.visible{body}").kernel()
    parameters = (0x10_0000).to_bytes(8, "little") + (0x20_0000).to_bytes(8, "little")
    machine = Machine(kernel, (1, 1, 1), (32, 1, 1), parameters)
    output = machine.memory.add(Region("output", 0x20_0000, 128, writable=True))
    machine.run()
    assert output.content.view(np.uint32)[:4].tolist() == [5, 6, 7, 0xFFFFFFFF]
    assert output.written_by(5) == (1, next(i.line for i in kernel.instructions if i.root == "st"))


def test_the_producer_is_waited_for() -> None:
    body = f"""{MINE} griddepcontrol.launch_dependents;
        griddepcontrol.wait; ld.global.b32 %r9, [%rd4]; st.global.b32 [%rd3], %r9; ret;"""
    assert (words(body, given=INPUT) == INPUT[:32]).all()
    early = re.sub(r"(griddepcontrol\.wait;) (ld\.global\.b32 %r9, \[%rd4\];)", r"\2 \1", body)
    assert early != body
    with pytest.raises(ExecutionError, match=r"touches global memory before griddepcontrol\.wait"):
        words(early, given=INPUT)
    some = body.replace("griddepcontrol.wait;", "setp.lt.u32 %p1, %r0, 9; @%p1 griddepcontrol.wait;")
    with pytest.raises(ExecutionError, match=r"thread \(9, 0, 0\) touches global memory before"):
        words(some, given=INPUT)


def test_gaps_of_a_strided_tensor_have_no_value() -> None:
    wide = torch.arange(24, dtype=torch.int32).view(4, 6)
    view = wide[:, 2:4]
    placed = place({"view": view, "empty": torch.empty(0, 3)}, frozenset())
    memory = Memory(str)
    regions = register(memory, placed)
    assert set(regions) == {"view"}
    base, ins = placed["view"].address, Instruction("ld", (), (), None, 1)
    assert base % 256 == 8
    thread = np.zeros(1, np.int64)

    def load(byte: int) -> int:
        return int(memory.load(np.array([base + byte]), 4, thread, ins).view(np.int32)[0, 0])

    assert [load(byte) for byte in (0, 4, 24, 28, 72, 76)] == [2, 3, 8, 9, 20, 21]
    for gap in (8, 20):
        with pytest.raises(MemoryAccessError, match="nobody wrote"):
            load(gap)
    for outside in (-4, 80):
        with pytest.raises(MemoryAccessError, match="out of bounds"):
            load(outside)


def test_outputs_come_back_with_their_strides() -> None:
    transposed = torch.empty(3, 2, dtype=torch.int16).t()
    placed = place({"out": transposed}, frozenset({"out"}))
    memory = Memory(str)
    region = register(memory, placed)["out"]
    region.content[:] = np.arange(6, dtype=np.int16).view(np.uint8)
    got = result(placed["out"], region)
    assert got.stride() == transposed.stride()
    assert got.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert result(placed["out"], None).shape == (2, 3)


def test_regions_do_not_overlap() -> None:
    memory = Memory(str)
    memory.add(Region("a", 0x100, 16, writable=True))
    with pytest.raises(ValueError, match="b overlaps a"):
        memory.add(Region("b", 0x10F, 16, writable=True))
    memory.add(Region("c", 0x110, 16, writable=True))


@pytest.mark.parametrize(("block", "parameters", "message"), [
    ((64, 1, 1), 16, "launched with"), ((128, 1, 1), 8, "takes 16 bytes of parameters, got 8"),
])  # fmt: skip
def test_a_launch_must_fit_the_kernel(block: tuple[int, int, int], parameters: int, message: str) -> None:
    text = source("ret;").replace("p1)\n{", "p1)\n.reqntid 128, 1, 1\n{")
    with pytest.raises(ValueError, match=message):
        Machine(parse(text).kernel(), (1, 1, 1), block, bytes(parameters))
