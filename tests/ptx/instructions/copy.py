"""Asynchronous copies from global to shared memory: cp.async, their groups, and the wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tests.ptx.errors import ExecutionError
from tests.ptx.syntax import Address, Instruction, Integer, Operand, Register

from .data import PREFETCH_SIZES, addresses_of, check_producer, shared_addresses
from .pure import Modifiers

if TYPE_CHECKING:
    from tests.ptx.machine import Action, Machine, Threads

_SIZES = {"ca": (4, 8, 16), "cg": (16,)}


def cp(machine: Machine, ins: Instruction) -> Action:
    """Data Movement and Conversion Instructions: cp.async, cp.async.commit_group, cp.async.wait_group and wait_all."""
    m = Modifiers(ins.root, ins.modifiers, 0)
    m.one_of("async")
    step = m.one_of("ca", "cg", "commit_group", "wait_group", "wait_all")
    if step in _SIZES:
        return _copy(machine, ins, m, step)
    m.finish()
    if len(ins.operands) != (1 if step == "wait_group" else 0):
        raise m.unknown(f"{len(ins.operands)} operands")
    match step, ins.operands:
        case "commit_group", _:
            return machine.copies.commit
        case "wait_group", (Integer(most),) if most >= 0:
            return lambda threads: machine.copies.wait(threads, most)
        case "wait_all", _:
            return lambda threads: _wait_all(machine, threads)
    raise m.unknown("the number of groups is a constant")


def _wait_all(machine: Machine, threads: Threads) -> None:
    """By definition cp.async.commit_group and cp.async.wait_group 0."""
    machine.copies.commit(threads)
    machine.copies.wait(threads, 0)


def _copy(machine: Machine, ins: Instruction, m: Modifiers, level: str) -> Action:
    """cp.async: `[dst], [src], cp-size{, src-size or ignore-src}{, cache-policy}`. Level and prefetch are hints."""
    m.one_of("shared", "shared::cta")
    m.one_of("global")
    hinted = m.flag("L2::cache_hint")
    m.one_of(*PREFETCH_SIZES, default="")
    m.finish()
    destination, source, size, *more = ins.operands[: len(ins.operands) - hinted]
    if not isinstance(destination, Address) or not isinstance(source, Address) or len(more) > 1:
        raise ExecutionError("expected two addresses, a size and at most a source size")
    if not isinstance(size, Integer) or size.value not in _SIZES[level]:
        raise ExecutionError(f"cp.async.{level} copies {' or '.join(map(str, _SIZES[level]))} bytes")
    width = size.value

    def action(threads: Threads) -> None:
        check_producer(machine, threads)
        data = _source(machine, addresses_of(machine, source, threads), width, more, threads, ins)
        offsets = addresses_of(machine, destination, threads)
        machine.copies.start(shared_addresses(machine, offsets, width, threads), data, threads, ins)

    return action


def _source(
    machine: Machine, addresses: np.ndarray, width: int, more: list[Operand], threads: Threads, ins: Instruction
) -> np.ndarray:
    """The bytes (threads, width) that are copied: as many of the source as its size says, then zeros."""
    if not more:
        return machine.memory.load(addresses, width, threads, ins)
    sizes = np.broadcast_to(_source_sizes(machine, more[0], width, threads), len(threads))
    if (sizes > width).any():
        at = int((sizes > width).argmax())
        who = machine.describe_thread(int(threads[at]))
        raise ExecutionError(f"{who} copies {sizes[at]} bytes of a source into {width}")
    misaligned = addresses % np.uint64(width) != 0
    if misaligned.any():
        at = int(misaligned.argmax())
        who = machine.describe_thread(int(threads[at]))
        raise ExecutionError(f"{who} copies from {addresses[at]:#x}, not a multiple of {width}")
    data = np.zeros((len(threads), width), np.uint8)
    thread, byte = np.nonzero(np.arange(width) < sizes[:, None])
    places = addresses[thread] + byte.astype(np.uint64)
    data[thread, byte] = machine.memory.load(places, 1, threads[thread], ins)[:, 0]
    return data


def _source_sizes(machine: Machine, operand: Operand, width: int, threads: Threads) -> np.ndarray:
    """A number of bytes, or a predicate that says to ignore the source."""
    if isinstance(operand, Register) and operand.type == "pred":
        return np.where(machine.read(operand, "pred", threads), 0, width)
    return machine.read(operand, "u32", threads).astype(np.int64)


ACTIONS: dict[str, Callable[[Machine, Instruction], Action]] = {"cp": cp}
