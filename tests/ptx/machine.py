"""Execute a parsed kernel: all threads of all blocks at once, each step one instruction for the threads that are there.

Threads are numpy lanes. Blocks are independent, so the whole grid runs together; each block is padded to whole warps
with lanes that never run. Threads that have diverged form groups with their own program counter; the group at the
lowest one runs first and groups that meet merge, which reconverges structured code at the end of each branch. Warp-wide
instructions and barriers park their threads until everyone they name has come; if nobody can run, that is an error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .contraction import Product
from .dispatch import compile_kernel
from .errors import ExecutionError, PtxError
from .instructions.warp import membermask
from .memory import WARP, Memory, Region
from .scalars import SCALARS, STORAGE
from .shared import SharedMemory
from .special import special_registers
from .syntax import (
    Float,
    Instruction,
    Integer,
    Kernel,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    results,
)

Threads = np.ndarray  # sorted indices of lanes
Action = Callable[[Threads], None]
Flow = Callable[[Threads], "list[tuple[int, Threads]]"]


class Machine:
    """One launch of `kernel`. Give it memory regions, then `run()`."""

    def __init__(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        parameters: bytes,
        dynamic_shared: int = 0,
        contract: bool = True,
    ) -> None:
        """Set up a launch.

        `parameters` is the parameter block, laid out as `kernel.parameters` says; `dynamic_shared` the bytes of extern
        shared arrays. `contract`: do what ptxas may do to a mul and an add without rounding modifier, fuse them.
        """
        self.kernel = kernel
        self.grid, self.block = grid, block
        self.contract = contract
        if len(parameters) != kernel.parameter_bytes:
            raise ValueError(f"{kernel.name} takes {kernel.parameter_bytes} bytes of parameters, got {len(parameters)}")
        self.parameters = np.frombuffer(parameters, np.uint8)
        required, most = kernel.required_threads, kernel.maximum_threads
        if (required and block != required) or (most and np.prod(block) > np.prod(most)):
            raise ValueError(
                f"{kernel.name} is compiled for blocks of {required or most} threads, launched with {block}"
            )
        self._place_threads()
        self._values: dict[str, np.ndarray] = {}
        self._defined: dict[str, np.ndarray | None] = {}  # None: in every lane
        self._assigned = {register.name for ins in kernel.instructions for register in results(ins)}
        self._noise = np.random.default_rng(0)
        self.products: dict[str, Product] = {}
        self.fused: set[int] = set()  # PTX lines of the adds and subs that were fused with a mul
        self.memory = Memory(self.describe_thread)
        self._place_variables(dynamic_shared)
        self.waits_for_producer = any(i.opcode == "griddepcontrol.wait" for i in kernel.instructions)
        self.producer_done = np.zeros(self.lanes, bool)

    def _place_threads(self) -> None:
        count = int(np.prod(self.block))
        self.block_lanes = -(-count // WARP) * WARP
        self.lanes = int(np.prod(self.grid)) * self.block_lanes
        lane = np.arange(self.lanes)
        self.block_of = lane // self.block_lanes
        self.everyone = np.flatnonzero(lane % self.block_lanes < count)
        self._special = special_registers(self.grid, self.block, self.block_lanes)

    def _place_variables(self, dynamic_shared: int) -> None:
        """Give each variable an address: a read-only region for .global and .const, an offset for .shared."""
        self.variables: dict[str, int] = {}
        self.shared_bytes = 0
        base = 0x1000
        ordered = sorted(self.kernel.variables.values(), key=lambda variable: variable.size == 0)  # extern arrays last
        for variable in ordered:
            if variable.space == "shared":
                at = -(-self.shared_bytes // variable.alignment) * variable.alignment
                self.variables[variable.name] = at
                self.shared_bytes = at + variable.size
                continue
            region = self.memory.add(Region(variable.name, base, variable.size, writable=False))
            known = None if variable.initial is not None else np.zeros(variable.size, np.uint8)
            region.fill(np.frombuffer(variable.initial or bytes(variable.size), np.uint8), known)
            self.variables[variable.name] = base
            base = -(-(base + variable.size + 256) // 256) * 256
        self.shared_bytes += dynamic_shared
        self.shared_stride = -(-self.shared_bytes // 256) * 256
        self.shared = SharedMemory(self.describe_thread, self.lanes, int(np.prod(self.grid)) * self.shared_stride)

    def describe_thread(self, lane: int) -> str:
        """`block (x, y, z) thread (x, y, z)`."""
        where = {
            name: tuple(int(self._special[f"%{name}.{axis}"][lane]) for axis in "xyz") for name in ("ctaid", "tid")
        }
        return f"block {where['ctaid']} thread {where['tid']}"

    def run(self) -> None:
        """Run every thread to its end. Errors name the instruction and the thread."""
        self._program = compile_kernel(self)
        self.alive = np.zeros(self.lanes, bool)
        self.alive[self.everyone] = True
        self._groups: dict[int, Threads] = {0: self.everyone}
        self._parked: dict[int, Threads] = {}
        with np.errstate(all="ignore"):
            while self._groups:
                pc = min(self._groups)
                self._run_group(pc, self._groups.pop(pc))
        if self._parked:
            self._explain_deadlock()

    def _run_group(self, pc: int, threads: Threads) -> None:
        """Run one group until it splits, ends, or reaches another group."""
        others = [*self._groups, *self._parked]
        meet = min((other for other in others if other > pc), default=-1)
        if pc in self._parked:
            threads = np.union1d(threads, self._parked.pop(pc))
        instructions, program = self.kernel.instructions, self._program
        while True:
            if pc == len(program):
                raise ExecutionError(f"{self.describe_thread(int(threads[0]))} runs past the end of {self.kernel.name}")
            action, flow = program[pc]
            try:
                if flow is not None:
                    for target, some in flow(threads):
                        self._join(target, some)
                    return
                action(threads)
            except PtxError as error:
                if str(error).startswith("line "):
                    raise
                raise type(error)(f"{instructions[pc]}: {error}") from error
            pc += 1
            if pc == meet:
                self._join(pc, threads)
                return

    def _join(self, pc: int, threads: Threads) -> None:
        if len(threads):
            here = self._groups.get(pc)
            self._groups[pc] = threads if here is None else np.union1d(here, threads)

    def park(self, pc: int, threads: Threads) -> None:
        """Let `threads` wait at `pc` until another group reaches it."""
        if len(threads):
            here = self._parked.get(pc)
            self._parked[pc] = threads if here is None else np.union1d(here, threads)

    def release_barriers(self) -> list[tuple[int, Threads]]:
        """Let those who wait at a barrier of their block look again, because a thread of it may have ended."""
        barriers = [pc for pc in self._parked if self._waits_for_block(self.kernel.instructions[pc])]
        return [(pc, self._parked.pop(pc)) for pc in barriers]

    def _waits_for_block(self, ins: Instruction) -> bool:
        return ins.root in ("bar", "barrier") and "warp" not in ins.modifiers

    def _explain_deadlock(self) -> None:
        pc, threads = min(self._parked.items())
        ins = self.kernel.instructions[pc]
        missing = self._missing_lanes(ins, threads)
        elsewhere = {
            int(lane): f"waits at {self.kernel.instructions[at]}"
            for at, some in self._parked.items()
            if at != pc
            for lane in some
        }
        lines = []
        for lane in missing[:4]:
            state = elsewhere.get(lane) or ("has ended" if lane in self.everyone else "does not exist")
            lines.append(f"{self.describe_thread(lane)} {state}")
        first = self.describe_thread(int(threads[0]))
        raise ExecutionError(f"{ins}: {first} waits for threads that do not take part: {'; '.join(lines)}")

    def _missing_lanes(self, ins: Instruction, threads: Threads) -> list[int]:
        """The lanes that the first of the waiting `threads` waits for."""
        first = int(threads[0])
        if self._waits_for_block(ins):
            block = np.flatnonzero(self.alive & (self.block_of == self.block_of[first]))
            return [int(lane) for lane in np.setdiff1d(block, threads)]
        mask = int(self.read(membermask(ins), "b32", threads[:1])[0])
        warp = first // WARP * WARP
        return [warp + lane for lane in range(WARP) if mask >> lane & 1 and warp + lane not in threads]

    def read(self, operand: Operand, kind: str, threads: Threads, relaxed: bool = False) -> np.ndarray:
        """The operand's values, as `SCALARS[kind].view`: one for each thread, or a single one for a constant."""
        scalar = SCALARS[kind]
        match operand:
            case Register():
                return self._read_register(operand, kind, threads, relaxed)
            case Negated(register):
                return ~self._read_register(register, "pred", threads, relaxed=False)
            case Integer(value):
                return np.array([value % (1 << scalar.bits)], scalar.storage).view(scalar.view)
            case Float(bits, width):
                return _float_constant(bits, width, kind)
            case Special(name):
                return self._special[name][threads].astype(scalar.storage).view(scalar.view)
            case Symbol(name, offset):
                return np.array([self.address_of(name) + offset]).astype(scalar.storage)
        raise ExecutionError(f"cannot read {operand} as .{kind}")

    def address_of(self, name: str) -> int:
        """The address of a variable in its own state space."""
        if name not in self.variables:
            raise ExecutionError(f"{name} is not a variable")
        return self.variables[name]

    def _read_register(self, register: Register, kind: str, threads: Threads, relaxed: bool) -> np.ndarray:
        scalar, declared = SCALARS[kind], SCALARS[register.type]
        if declared.bits != scalar.bits and not (relaxed and declared.bits > scalar.bits > 1):
            raise ExecutionError(f"register {register.name} is .{register.type}, the instruction reads .{kind}")
        if register.name not in self._values and register.name not in self._assigned:
            # What the compiler left undefined holds anything: noise, so that no output can depend on it unnoticed.
            self._values[register.name] = (
                self._noise.integers(0, 256, self.lanes * 8, np.uint8).view(np.uint64).astype(declared.storage)
            )
            self._defined[register.name] = None
        if register.name not in self._values:
            raise ExecutionError(f"{self.describe_thread(int(threads[0]))} reads {register.name}, which nothing wrote")
        defined = self._defined[register.name]
        if defined is not None and not defined[threads].all():
            lane = int(threads[int((~defined[threads]).argmax())])
            raise ExecutionError(f"{self.describe_thread(lane)} reads {register.name}, which it did not write")
        values = self._values[register.name]
        values = values if len(threads) == self.lanes else values[threads]
        return values.astype(scalar.storage, copy=False).view(scalar.view)

    def write(self, operand: Operand, kind: str, values: np.ndarray, threads: Threads, relaxed: bool = False) -> None:
        """Write values of type `kind` (one for each thread, or a single one) to a register or nowhere."""
        if isinstance(operand, Sink):
            return
        if not isinstance(operand, Register):
            raise ExecutionError(f"cannot write to {operand}")
        scalar, declared = SCALARS[kind], SCALARS[operand.type]
        if declared.bits != scalar.bits:
            if not (relaxed and declared.bits > scalar.bits > 1):
                raise ExecutionError(f"register {operand.name} is .{operand.type}, the instruction writes .{kind}")
            wider = np.dtype(f"{'i' if scalar.signed else 'u'}{declared.bits // 8}")
            narrow = values if scalar.signed else values.view(scalar.storage)
            values = narrow.astype(wider)
        bits = np.ascontiguousarray(values).view(STORAGE[declared.bits])
        self.products.pop(operand.name, None)
        if len(threads) == self.lanes:
            self._values[operand.name] = np.array(np.broadcast_to(bits, self.lanes))
            self._defined[operand.name] = None
            return
        if operand.name not in self._values:
            self._values[operand.name] = np.zeros(self.lanes, bits.dtype)
            self._defined[operand.name] = np.zeros(self.lanes, bool)
        self._values[operand.name][threads] = bits
        defined = self._defined[operand.name]
        if defined is not None:
            defined[threads] = True

    def write_results(
        self, operand: Operand, kinds: tuple[str, ...], values: tuple[np.ndarray, ...], threads: Threads, relaxed: bool
    ) -> None:
        """Write an instruction's results to `d` or `d|p`; results without a place are dropped."""
        places = (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)
        if len(places) > len(kinds):
            raise ExecutionError("the instruction has one result, two places are given")
        for place, kind, value in zip(places, kinds, values, strict=False):
            self.write(place, kind, np.asarray(value, SCALARS[kind].view), threads, relaxed)


def _float_constant(bits: int, width: int, kind: str) -> np.ndarray:
    scalar = SCALARS[kind]
    raw = np.array([bits], f"u{width // 8}")
    if scalar.bits == width:
        return raw.view(scalar.view)
    if width == 64 and kind == "f32":
        return raw.view(np.float64).astype(np.float32)
    raise ExecutionError(f"a {width}-bit floating-point constant cannot be .{kind}")
