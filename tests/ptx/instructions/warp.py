"""Instructions of a whole warp: shfl, vote, elect, redux, activemask, bar.warp.

Every `.sync` form waits until all lanes that its mask names stand at the same instruction (PTX ISA, Parallel
Synchronization and Communication Instructions). A named lane that never comes is an error, also when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tests.ptx.errors import ExecutionError
from tests.ptx.formats import widen
from tests.ptx.memory import WARP
from tests.ptx.syntax import Instruction, Integer, Operand

from .pure import Modifiers, evaluate

if TYPE_CHECKING:
    from tests.ptx.machine import Flow, Machine, Threads

_LANES = np.arange(WARP, dtype=np.uint64)


def membermask(ins: Instruction) -> Operand:
    """The operand that names the lanes which must take part: the last one, or all lanes for the matrix moves."""
    return Integer(0xFFFFFFFF) if ins.root in ("ldmatrix", "stmatrix") else ins.operands[-1]


def synchronized(machine: Machine, pc: int, ins: Instruction, action: Callable[[Threads, np.ndarray], None]) -> Flow:
    """Run `action(threads, masks)` for warps that are complete and park the others."""
    mask_operand = membermask(ins)

    def flow(threads: Threads) -> list[tuple[int, Threads]]:
        masks = np.broadcast_to(machine.read(mask_operand, "b32", threads), len(threads)).astype(np.uint64)
        own = masks >> (threads % WARP).astype(np.uint64) & np.uint64(1)
        if not own.all():
            lane = int(threads[int((own == 0).argmax())])
            raise ExecutionError(f"{machine.describe_thread(lane)} is not in its own membermask")
        here = np.zeros((machine.lanes // WARP, WARP), bool)
        here.reshape(-1)[threads] = True
        present = (here << _LANES.astype(np.int64)).sum(-1).astype(np.uint64)[threads // WARP]
        # A warp goes when each of its waiting lanes has all its partners; lanes of one mask agree on the mask.
        incomplete = np.zeros(len(here), bool)
        incomplete[(threads // WARP)[(masks & ~present) != 0]] = True
        ready = ~incomplete[threads // WARP]
        machine.park(pc, threads[~ready])
        going = threads[ready]
        if len(going):
            action(going, masks[ready])
        return [(pc + 1, going)]

    return flow


def _across(machine: Machine, values: np.ndarray, threads: Threads) -> np.ndarray:
    """The values as (threads, 32): for each thread those of its warp's lanes, zero for lanes that do not take part."""
    everyone = np.zeros(machine.lanes, values.dtype)
    everyone[threads] = values
    return everyone.reshape(-1, WARP)[threads // WARP]


def _members(masks: np.ndarray) -> np.ndarray:
    return (masks[:, None] >> _LANES & np.uint64(1)).astype(bool)


def shfl(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Parallel Synchronization and Communication Instructions: shfl.sync."""
    m = Modifiers(ins.root, ins.modifiers, 4)
    m.one_of("sync")
    mode = m.one_of("up", "down", "bfly", "idx")
    m.type("b32")
    m.finish()
    destination, source, offset, clamp, _ = ins.operands

    def action(threads: Threads, masks: np.ndarray) -> None:
        lane = (threads % WARP).astype(np.int64)
        b = machine.read(offset, "u32", threads).astype(np.int64) & 31
        c = machine.read(clamp, "u32", threads).astype(np.int64)
        segment, bound = c >> 8 & 31, c & 31
        lowest = lane & segment
        highest = lowest | (bound & ~segment & 31)
        if mode == "up":
            wanted = lane - b
            inside = wanted >= highest
        else:
            wanted = {"down": lane + b, "bfly": lane ^ b, "idx": lowest | (b & ~segment & 31)}[mode]
            inside = wanted <= highest
        wanted = np.where(inside, wanted, lane)
        absent = masks >> wanted.astype(np.uint64) & np.uint64(1) == 0
        if absent.any():
            at = int(absent.argmax())
            who = machine.describe_thread(int(threads[at]))
            raise ExecutionError(f"{who} shuffles from lane {wanted[at]}, which its membermask leaves out")
        values = np.broadcast_to(machine.read(source, "b32", threads), len(threads))
        received = np.take_along_axis(_across(machine, values, threads), wanted[:, None], axis=1)[:, 0]
        machine.write_results(destination, ("b32", "pred"), (received, inside), threads, relaxed=False)

    return synchronized(machine, pc, ins, action)


def vote(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Parallel Synchronization and Communication Instructions: vote.sync."""
    m = Modifiers(ins.root, ins.modifiers, 2)
    m.one_of("sync")
    mode = m.one_of("all", "any", "uni", "ballot")
    kind = m.type("b32" if mode == "ballot" else "pred")
    m.finish()
    destination, source, _ = ins.operands

    def action(threads: Threads, masks: np.ndarray) -> None:
        members = _members(masks)
        votes = (
            _across(machine, np.broadcast_to(machine.read(source, "pred", threads), len(threads)), threads) & members
        )
        yes, total = votes.sum(-1), members.sum(-1)
        results = {
            "all": yes == total,
            "any": yes > 0,
            "uni": (yes == total) | (yes == 0),
            "ballot": (votes.astype(np.uint64) << _LANES).sum(-1).astype(np.uint32),
        }
        machine.write(destination, kind, results[mode], threads)

    return synchronized(machine, pc, ins, action)


def elect(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Parallel Synchronization and Communication Instructions: elect.sync. The choice is open: the lowest."""
    m = Modifiers(ins.root, ins.modifiers, 1)
    m.one_of("sync")
    m.finish()
    destination, _ = ins.operands

    def action(threads: Threads, masks: np.ndarray) -> None:
        leader = _members(masks).argmax(-1).astype(np.uint32)
        machine.write_results(destination, ("b32", "pred"), (leader, leader == threads % WARP), threads, relaxed=False)

    return synchronized(machine, pc, ins, action)


def redux(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Parallel Synchronization and Communication Instructions: redux.sync, integers and (sm_100a) f32 min and max."""
    m = Modifiers(ins.root, ins.modifiers, 2)
    m.one_of("sync")
    operation = m.one_of("add", "min", "max", "and", "or", "xor")
    magnitudes, propagate = m.flag("abs"), m.flag("NaN")
    kind = m.type("b32") if operation in ("and", "or", "xor") else m.type("u32", "s32", "f32")
    m.finish()
    if operation == "add" if kind == "f32" else magnitudes or propagate:
        raise m.unknown("this form is not in the ISA")
    opcode = f"{operation}.{'NaN.' if propagate else ''}{kind}"
    destination, source, _ = ins.operands

    def action(threads: Threads, masks: np.ndarray) -> None:
        members = _members(masks)
        values = np.broadcast_to(machine.read(source, "b32", threads), len(threads))
        if magnitudes:
            values = values & np.uint32(0x7FFFFFFF)
        columns = _across(machine, values, threads)
        first = members.argmax(-1)
        total = np.take_along_axis(columns, first[:, None], axis=1)[:, 0]
        for lane in range(WARP):
            joined = np.asarray(evaluate(opcode, total, columns[:, lane].copy())).view(np.uint32)
            total = np.where(members[:, lane] & (lane != first), joined, total)
        if kind == "f32":
            total = np.where(np.isnan(widen(total, "f32")), np.uint32(0x7FFFFFFF), total)
        machine.write(destination, "b32", total, threads)

    return synchronized(machine, pc, ins, action)


def activemask(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Parallel Synchronization and Communication Instructions: activemask. The lanes that stand here together."""
    m = Modifiers(ins.root, ins.modifiers, 0)
    m.type("b32")
    m.finish()

    def flow(threads: Threads) -> list[tuple[int, Threads]]:
        here = _across(machine, np.ones(len(threads), np.uint64), threads)
        machine.write(ins.operands[0], "b32", (here << _LANES).sum(-1).astype(np.uint32), threads)
        return [(pc + 1, threads)]

    return flow


def warp_barrier(machine: Machine, pc: int, ins: Instruction) -> Flow:
    """Parallel Synchronization and Communication Instructions: bar.warp.sync.

    It orders memory for the lanes that its mask names; the interpreter counts that where those are all of the warp.
    """
    m = Modifiers(ins.root, ins.modifiers, 1)
    m.one_of("warp")
    m.one_of("sync")
    m.finish()

    def action(threads: Threads, masks: np.ndarray) -> None:
        alive = (machine.alive.reshape(-1, WARP) << _LANES.astype(np.int64)).sum(-1).astype(np.uint64)
        whole = alive[threads // WARP] & ~masks == 0
        machine.shared.pass_barrier(threads[whole], whole_block=False)

    return synchronized(machine, pc, ins, action)


FLOWS: dict[str, Callable[[Machine, int, Instruction], Flow]] = {
    "shfl": shfl,
    "vote": vote,
    "elect": elect,
    "redux": redux,
    "activemask": activemask,
}
