"""Control flow, barriers of a block, and programmatic dependent launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tests.ptx.errors import ExecutionError, UnknownInstructionError
from tests.ptx.syntax import Instruction, Integer, Symbol

from .pure import Modifiers
from .warp import warp_barrier

if TYPE_CHECKING:
    from tests.ptx.machine import Action, Flow, Machine, Threads


def bra(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Control Flow Instructions: bra."""
    m = Modifiers(ins.root, ins.modifiers, 1)
    m.flag("uni")
    m.finish()
    (target,) = ins.operands
    if not isinstance(target, Symbol) or target.name not in machine.kernel.labels:
        raise ExecutionError(f"{target} is not a label")
    place = machine.kernel.labels[target.name]
    return lambda threads: [(place, threads)]


def ret(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Control Flow Instructions: ret, exit. In a kernel both end the thread."""
    m = Modifiers(ins.root, ins.modifiers, 0)
    m.flag("uni")
    m.finish()

    def flow(threads: Threads) -> list[tuple[int, Threads]]:
        machine.alive[threads] = False
        return machine.release_barriers()

    return flow


def trap(machine: Machine, ins: Instruction) -> Action:
    """Miscellaneous Instructions: trap. The kernel gave up."""

    def action(threads: Threads) -> None:
        raise ExecutionError(f"{machine.describe_thread(int(threads[0]))} reached a trap")

    return action


def bar(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Parallel Synchronization and Communication Instructions: bar.sync, barrier.sync for all threads of a block.

    `bar.warp.sync` is in the same family; it waits for the lanes that its mask names.
    """
    if "warp" in ins.modifiers:
        return warp_barrier(machine, pc, ins)
    m = Modifiers(ins.root, ins.modifiers, 1)
    m.one_of("sync")
    m.flag("cta")
    m.flag("aligned")
    m.finish()
    if len(ins.operands) != 1 or not isinstance(ins.operands[0], Integer):
        raise UnknownInstructionError(f"unknown instruction {ins.opcode}: only a constant barrier of the whole block")

    def flow(threads: Threads) -> list[tuple[int, Threads]]:
        blocks = len(machine.alive) // machine.block_lanes
        come = np.bincount(machine.block_of[threads], minlength=blocks)
        expected = machine.alive.reshape(blocks, -1).sum(-1)
        complete = (come == expected)[machine.block_of[threads]]
        machine.park(pc, threads[~complete])
        passed = threads[complete]
        machine.shared.pass_barrier(passed, whole_block=True)
        return [(pc + 1, passed)]

    return flow


def griddepcontrol(machine: Machine, ins: Instruction) -> Action:
    """Parallel Synchronization and Communication Instructions: griddepcontrol.

    `.wait` lets the thread touch global memory; `.launch_dependents` promises nothing to this grid.
    """
    m = Modifiers(ins.root, ins.modifiers, 0)
    action = m.one_of("wait", "launch_dependents")
    m.finish()
    if action == "launch_dependents":
        return lambda threads: None

    def wait(threads: Threads) -> None:
        machine.producer_done[threads] = True

    return wait


ACTIONS: dict[str, Callable[[Machine, Instruction], Action]] = {"trap": trap, "griddepcontrol": griddepcontrol}
FLOWS: dict[str, Callable[[Machine, int, Instruction], Flow]] = {
    "bra": bra,
    "ret": ret,
    "exit": ret,
    "bar": bar,
    "barrier": bar,
}
