"""What a launcher asks of the driver, and the interpreter's answer to it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .errors import ExecutionError
from .machine import Machine
from .memory import Region
from .placement import Placed, register, result
from .syntax import Kernel


@dataclass(frozen=True)
class Launch:
    """One kernel launch: its geometry, its parameter block, and whether it may start before its producer has ended."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: bytes
    dynamic_shared: int
    dependent: bool


@dataclass(frozen=True)
class Execution:
    """A launch that ran: what the outputs hold, and the machine, to ask who wrote a byte."""

    outputs: dict[str, Tensor]
    regions: dict[str, Region]
    machine: Machine

    def writer(self, name: str, byte: int) -> str:
        """Which thread wrote byte `byte` of output `name`, and at which PTX line."""
        lane, line = self.regions[name].written_by(byte)
        return "nobody wrote it" if lane < 0 else f"written by {self.machine.describe_thread(lane)} at PTX line {line}"


def execute(kernel: Kernel, launch: Launch, placed: dict[str, Placed], contract: bool = True) -> Execution:
    """Run `kernel` over the placed tensors. ExecutionError and MemoryAccessError say what it did wrong."""
    machine = Machine(kernel, launch.grid, launch.block, launch.parameters, launch.dynamic_shared, contract)
    if launch.dependent and not machine.waits_for_producer:
        raise ExecutionError(f"{kernel.name} is launched before its producer has ended and never waits for it")
    regions = register(machine.memory, placed)
    machine.run()
    outputs = {name: result(each, regions.get(name)) for name, each in placed.items() if each.output}
    return Execution(outputs, regions, machine)
