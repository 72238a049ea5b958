"""Small hand-written PTX programs for tests: wrap a body in a kernel, give it buffers, run it."""

from __future__ import annotations

import struct

import numpy as np

from tests.ptx.machine import Machine
from tests.ptx.memory import Region
from tests.ptx.parse import parse

BASE, STEP = 0x10_0000, 0x10_0000

HEADER = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry program(.param .u64 p0, .param .u64 p1)
{
    .reg .pred %p<8>;
    .reg .b16 %h<8>;
    .reg .b32 %r<32>;
    .reg .b64 %rd<16>;
"""
PROLOGUE = """
    ld.param.u64 %rd0, [p0];
    ld.param.u64 %rd1, [p1];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 4;
    add.u64 %rd3, %rd1, %rd2;
"""


def source(body: str, prologue: str = PROLOGUE) -> str:
    """A kernel of two pointers. Before `body`: %rd0, %rd1 the pointers, %r0 the thread, %rd3 its word in the output."""
    return f"{HEADER}{prologue}{body}\n}}\n"


def run(
    body: str,
    *,
    threads: int = 32,
    blocks: int = 1,
    given: np.ndarray | None = None,
    out_bytes: int | None = None,
    shared: int = 0,
    shift: int = 0,
    contract: bool = True,
    prologue: str = PROLOGUE,
) -> np.ndarray:
    """Run a body over an input `given` and an output of one u32 a thread; the output. `shift` misplaces the output."""
    kernel = parse(source(body, prologue)).kernel()
    words = threads * blocks
    size = 4 * words if out_bytes is None else out_bytes
    parameters = struct.pack("<QQ", BASE, BASE + STEP + shift)
    machine = Machine(kernel, (blocks, 1, 1), (threads, 1, 1), parameters, shared, contract)
    if given is not None:
        machine.memory.add(Region("input", BASE, given.nbytes, writable=False)).fill(given.view(np.uint8))
    region = machine.memory.add(Region("output", BASE + STEP + shift, size, writable=True))
    machine.run()
    return region.content.copy()


def words(body: str, **options: object) -> np.ndarray:
    """The output of `run` as u32."""
    return run(body, **options).view(np.uint32)  # type: ignore[arg-type]
