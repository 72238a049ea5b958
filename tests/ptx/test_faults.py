"""Faults planted in the text of real kernels: each must be caught, and the text without the fault must pass."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from tests import cases
from tests.ptx.backends import CUTE, TRITON, Program, difference, interpret, launched
from tests.ptx.errors import ExecutionError, MemoryAccessError

ODD = {"tokens": 3, "num_heads": 5}  # 15 work items: the last block is not full


def plant(program: Program, pattern: str, replacement: str, count: int = 0) -> str:
    """The program's text with a fault in it."""
    text, times = re.subn(pattern, replacement, program.ptx, count=count)
    assert times, f"{program.label} has nothing like {pattern}: find another place to plant the fault"
    return text


def odd(fmt: str = "fp8", target: str = "sm_90", **more: object) -> tuple[cases.Case, Program]:
    case = cases.random_case(3, fmt=fmt, **ODD, **more)  # type: ignore[arg-type]
    return case, launched(CUTE, case, target)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_the_guard_of_the_last_block_removed(target: str) -> None:
    """Items past the end repeat the last one; without the guard they store it a second time, from another thread."""
    case, program = odd(target=target)
    text = plant(program, r"@p (st\.global)", r"\1", count=1)
    with pytest.raises(MemoryAccessError, match=r"writes.* a byte written by block"):
        interpret(program, case, text)
    # Without the clamp as well, they run past the tensors.
    text = plant(program, r"min\.u32 (%r\d+), (%r\d+), %r\d+;", r"mov.u32 \1, \2;", count=1)
    with pytest.raises(MemoryAccessError, match="out of bounds"):
        interpret(program, case, text)
    assert difference(interpret(program, case), cases.reference(case)) is None


def test_the_mask_of_tritons_stores_removed() -> None:
    case = cases.random_case(3, fmt="fp8", **ODD)
    program = launched(TRITON, case, "sm_90")
    text = plant(program, r"@%p\d+ (st\.global)", r"\1")
    with pytest.raises(MemoryAccessError, match=r"out of bounds|a byte written by"):
        interpret(program, case, text)
    assert difference(interpret(program, case), cases.reference(case)) is None


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_a_misaligned_load(target: str) -> None:
    case, program = odd(target=target)
    text = plant(program, r"(ld\.global\S*\.v[248]\.b32 \{[^}]*\}, \[%rd\d+)\+0\]", r"\1+2]", count=1)
    with pytest.raises(MemoryAccessError, match=r"line \d+: ld\.global.*, not a multiple of (8|16|32)"):
        interpret(program, case, text)


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_contraction_allowed(fmt: str) -> None:
    """Where a * cos and b * sin are equal their difference is +0; fused it is what the rounding of one of them left."""
    case = cases.random_case(9, fmt=fmt, tokens=3, num_heads=5, edges=False)
    case.q[..., 64::2] = case.q[..., 65::2]
    half = case.cos_sin_cache.shape[1] // 2
    case.cos_sin_cache[:, :half] = case.cos_sin_cache[:, half:]
    expected = cases.reference(case)
    program = launched(CUTE, case, "sm_90")
    text = plant(program, r"\b(mul|add|sub)\.rn\.f32", r"\1.f32")
    execution = interpret(program, case, text)
    assert execution.machine.fused
    problem = difference(execution, expected)
    assert problem is not None
    assert "written by block" in problem
    plain = interpret(program, case)
    assert difference(plain, expected) is None
    assert not plain.machine.fused


LEAVE_OUT = {
    "by the mask": (r"(shfl\.sync\.bfly\.b32 .*, 31), -1;", r"\1, 0x7fffffff;", "not in its own membermask"),
    "by a branch": (
        r"(shfl\.sync\.bfly\.b32 \s*(%r\d+), .*, 31, -1;)",
        r"{ .reg .pred here; .reg .b32 lane; mov.u32 lane, %laneid; setp.ne.u32 here, lane, 31;"
        r" mov.b32 \2, 0; @here \1 }",
        r"waits for threads that do not take part: block \(0, 0, 0\) thread \(31, 0, 0\) (waits at|has ended)",
    ),
}


@pytest.mark.parametrize("how", LEAVE_OUT)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_a_lane_left_out_of_a_shuffle(target: str, how: str) -> None:
    case, program = odd(target=target, hadamard=True)
    pattern, replacement, message = LEAVE_OUT[how]
    text = plant(program, pattern, replacement, count=1)
    with pytest.raises(ExecutionError, match=message):
        interpret(program, case, text)


def test_the_wait_for_the_producer_removed() -> None:
    case, program = odd()
    with pytest.raises(ExecutionError, match="launched before its producer has ended and never waits"):
        interpret(program, case, plant(program, r"@p griddepcontrol\.wait;", ""))
    late = plant(program, r"setp\.eq\.u32 p, 0, 0;", "setp.ne.u32 p, 0, 0;")
    with pytest.raises(ExecutionError, match=r"touches global memory before griddepcontrol\.wait"):
        interpret(program, case, late)


def test_a_position_that_is_not_checked() -> None:
    """Positions at and past the end of the cache, and -1: without the comparison they read outside of it."""
    case, program = odd()
    case = replace(case, positions=torch.tensor([300, -1, 2**31 - 1]))
    assert difference(interpret(program, case), cases.reference(case)) is None
    text = plant(program, r"@p (ld\.global\.nc)", r"\1")
    with pytest.raises(MemoryAccessError, match=r"ld\.global\.nc.* out of bounds"):
        interpret(program, case, text)


def test_a_gap_of_a_strided_q_is_not_read() -> None:
    """A load that is too early by one vector stays inside the tensor's span but hits bytes that are not q's."""
    case, program = odd(layout="slice", head_dim=128)
    text = plant(program, r"(ld\.global\S*\.v2\.b32 \{[^}]*\}, \[%rd\d+)\+0\]", r"\1+-8]", count=1)
    with pytest.raises(MemoryAccessError, match=r"reads a byte nobody wrote|out of bounds"):
        interpret(program, case, text)


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_a_wrong_constant_changes_bytes(fmt: str) -> None:
    """The comparison itself: one bit of the shift that widens bf16 to fp32."""
    case, program = odd(fmt)
    text = plant(program, r"shl\.b32 (.*), 16;", r"shl.b32 \1, 15;", count=1)
    assert difference(interpret(program, case, text), cases.reference(case)) is not None
