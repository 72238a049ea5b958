"""Turn each instruction into a function over threads: guards, operand types, and the families in `instructions/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .contraction import contracted, remember_product
from .errors import PtxError, UnknownInstructionError
from .instructions import control, data, matrix, pure, warp
from .syntax import Instruction

if TYPE_CHECKING:
    from .machine import Action, Flow, Machine, Threads

ACTIONS = {**data.ACTIONS, **control.ACTIONS}
FLOWS = {**control.FLOWS, **warp.FLOWS, **matrix.FLOWS}


def compile_kernel(machine: Machine) -> list[tuple[Action, Flow | None]]:
    """One entry an instruction: an action, after which threads go on to the next one, or a flow that sends them on."""
    return [_compile(machine, pc, ins) for pc, ins in enumerate(machine.kernel.instructions)]


def _compile(machine: Machine, pc: int, ins: Instruction) -> tuple[Action, Flow | None]:
    try:
        if ins.root in FLOWS:
            return _nothing, _guarded_flow(machine, pc, ins, FLOWS[ins.root](machine, pc, ins))
        build = ACTIONS.get(ins.root)
        return _guarded(machine, ins, build(machine, ins) if build else _pure_action(machine, ins)), None
    except UnknownInstructionError as error:
        raise UnknownInstructionError(f"line {ins.line}: {error}") from error
    except PtxError as error:
        raise type(error)(f"{ins}: {error}") from error


def _nothing(threads: Threads) -> None:
    """What an instruction does besides sending threads on."""


def _pure_action(machine: Machine, ins: Instruction) -> Action:
    op = pure.instruction_op(ins)
    destination, sources = ins.operands[0], ins.operands[1:]
    if len(sources) != len(op.sources):
        raise UnknownInstructionError(f"unknown instruction {ins.opcode} with {len(sources)} sources")

    def action(threads: Threads) -> None:
        values = [
            machine.read(source, kind, threads, op.relaxed) for source, kind in zip(sources, op.sources, strict=True)
        ]
        results = contracted(machine, ins, values, threads) or op.compute(*values)
        machine.write_results(destination, op.results, results, threads, op.relaxed)
        remember_product(machine, ins, values, threads)

    return action


def _guarded(machine: Machine, ins: Instruction, action: Action) -> Action:
    guard = ins.guard
    if guard is None:
        return action

    def guarded(threads: Threads) -> None:
        chosen = threads[machine.read(guard, "pred", threads)]
        if len(chosen):
            action(chosen)

    return guarded


def _guarded_flow(machine: Machine, pc: int, ins: Instruction, flow: Flow) -> Flow:
    guard = ins.guard
    if guard is None:
        return flow

    def guarded(threads: Threads) -> list[tuple[int, Threads]]:
        taken = machine.read(guard, "pred", threads)
        chosen = threads[taken]
        return [*(flow(chosen) if len(chosen) else []), (pc + 1, threads[~taken])]

    return guarded
