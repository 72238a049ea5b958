"""ldmatrix and stmatrix: a warp moves 8x8 matrices of 16-bit elements between registers and shared memory.

PTX ISA, Warp Level Matrix Load and Store Instructions. Lane t holds, of each matrix, element (t/4, 2(t%4)) and the next
one of that row; with `.trans` (2(t%4), t/4) and the one below. Lane 8i+r gives the address of row r of matrix i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tests.ptx.errors import ExecutionError
from tests.ptx.memory import SHARED_WINDOW, WARP
from tests.ptx.syntax import Address, Instruction, Vector

from .data import addresses_of, shared_access
from .pure import Modifiers
from .warp import synchronized

if TYPE_CHECKING:
    from tests.ptx.machine import Flow, Machine, Threads

ROW_BYTES = 16


def matrix(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Warp Level Matrix Load and Store Instructions: ldmatrix, stmatrix, of shape m8n8 and type b16."""
    m = Modifiers(ins.root, ins.modifiers, 1)
    for mandatory in ("sync", "aligned", "m8n8"):
        m.one_of(mandatory)
    count = int(m.one_of("x1", "x2", "x4")[1:])
    transposed = m.flag("trans")
    space = m.one_of("shared", "shared::cta", default="")
    m.type("b16")
    m.finish()
    loads = ins.root == "ldmatrix"
    vector, address = ins.operands if loads else ins.operands[::-1]
    if not isinstance(vector, Vector) or len(vector.items) != count or not isinstance(address, Address):
        raise ExecutionError(f"expected {count} registers and an address")

    def action(threads: Threads, masks: np.ndarray) -> None:
        rows = addresses_of(machine, address, threads)
        rows = rows if space else rows - np.uint64(SHARED_WINDOW)
        supplied = rows.reshape(-1, WARP)[:, : 8 * count]
        if (supplied % np.uint64(ROW_BYTES)).any():
            raise ExecutionError(f"a row address is not a multiple of {ROW_BYTES}")
        lane = threads % WARP
        for number, register in enumerate(vector.items):
            parts = []
            if not loads:
                values = np.broadcast_to(machine.read(register, "b32", threads), len(threads))
                parts = [values] if not transposed else [values & np.uint32(0xFFFF), values >> np.uint32(16)]
            for part in range(2 if transposed else 1):
                row, column = (2 * (lane % 4) + part, lane // 4) if transposed else (lane // 4, 2 * (lane % 4))
                start = supplied[(np.arange(len(threads)) // WARP), 8 * number + row] + (2 * column).astype(np.uint64)
                width = 2 if transposed else 4
                data = None
                if not loads:
                    data = parts[part].astype(f"u{width}").view(np.uint8).reshape(-1, width)
                moved = shared_access(machine, start, width, ins, threads, data)
                if loads:
                    parts.append(np.ascontiguousarray(moved).view(f"u{width}")[:, 0].astype(np.uint32))
            if loads:
                value = parts[0] if not transposed else parts[0] | parts[1] << np.uint32(16)
                machine.write(register, "b32", value, threads)

    return synchronized(machine, pc, ins, action)


FLOWS: dict[str, Callable[[Machine, int, Instruction], Flow]] = {"ldmatrix": matrix, "stmatrix": matrix}
