"""Data movement that needs the machine: mov, cvta, ld, st, prefetch, createpolicy, fences."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tests.ptx.errors import ExecutionError
from tests.ptx.memory import SHARED_WINDOW
from tests.ptx.scalars import SCALARS, STORAGE
from tests.ptx.syntax import Address, Instruction, Integer, Operand, Register, Symbol, Vector

from .pure import Modifiers

if TYPE_CHECKING:
    from tests.ptx.machine import Action, Machine, Threads

_SPACES = ("param", "param::entry", "global", "shared", "shared::cta", "const")
_ORDER = ("weak", "volatile", "relaxed", "acquire", "release")
_SCOPE = ("cta", "cluster", "gpu", "sys")
_CACHE = ("ca", "cg", "cs", "lu", "cv", "wb", "wt")
_PRIORITIES = ("evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate")
_HINTS = tuple(f"L{level}::{name}" for level in (1, 2) for name in _PRIORITIES)
_PREFETCH_SIZES = ("L2::64B", "L2::128B", "L2::256B")
_MEMORY_TYPES = (*(name for name in SCALARS if name[0] in "bus" and name[1:].isdigit()), "f32", "f64")


def mov(machine: Machine, ins: Instruction) -> Action:
    """Data Movement and Conversion Instructions: mov. A register, special register, address, or a vector (un)packed."""
    m = Modifiers(ins.root, ins.modifiers, 1)
    (kind,) = m.types(1)
    m.finish()
    target, source = ins.operands
    if isinstance(source, Vector):
        return lambda threads: machine.write(target, kind, _pack(machine, source, kind, threads), threads)
    if isinstance(target, Vector):
        return lambda threads: _unpack(machine, target, machine.read(source, kind, threads), kind, threads)
    return lambda threads: machine.write(target, kind, machine.read(source, kind, threads), threads)


def _pack(machine: Machine, vector: Vector, kind: str, threads: Threads) -> np.ndarray:
    """The first item in the lowest bits."""
    bits = SCALARS[kind].bits // len(vector.items)
    packed = np.zeros(1, SCALARS[kind].storage)
    for place, item in enumerate(vector.items):
        value = machine.read(item, f"b{bits}", threads).astype(packed.dtype)
        packed = packed | value << packed.dtype.type(place * bits)
    return packed.view(SCALARS[kind].view)


def _unpack(machine: Machine, vector: Vector, value: np.ndarray, kind: str, threads: Threads) -> None:
    bits = SCALARS[kind].bits // len(vector.items)
    value = np.ascontiguousarray(value).view(SCALARS[kind].storage)
    for place, item in enumerate(vector.items):
        part = (value >> value.dtype.type(place * bits)).astype(STORAGE[bits])
        machine.write(item, f"b{bits}", part, threads)


def cvta(machine: Machine, ins: Instruction) -> Action:
    """Data Movement and Conversion Instructions: cvta. Generic addresses are global ones; .shared has a window."""
    m = Modifiers(ins.root, ins.modifiers, 1)
    to = m.flag("to")
    space = m.one_of("global", "const", "shared", "shared::cta", "param")
    kind = m.type("u64")
    m.finish()
    shift = SHARED_WINDOW if space.startswith("shared") else 0
    target, source = ins.operands

    def action(threads: Threads) -> None:
        address = machine.read(source, kind, threads)
        machine.write(target, kind, address - np.uint64(shift) if to else address + np.uint64(shift), threads)

    return action


def createpolicy(machine: Machine, ins: Instruction) -> Action:
    """Data Movement and Conversion Instructions: createpolicy.fractional. A hint; its value is opaque."""
    m = Modifiers(ins.root, ins.modifiers, len(ins.operands) - 1)
    m.one_of("fractional")
    m.one_of(*_HINTS)
    m.one_of(*_HINTS, default="")
    kind = m.type("b64")
    m.finish()
    return lambda threads: machine.write(ins.operands[0], kind, np.zeros(1, np.uint64), threads)


class _Access:
    """The modifiers of ld and st: where, how wide, which hints."""

    def __init__(self, ins: Instruction) -> None:
        m = Modifiers(ins.root, ins.modifiers, len(ins.operands) - 1)
        self.space = m.one_of(*_SPACES, default="generic").split("::")[0]
        self.non_coherent = m.flag("nc")
        # Ordering, scope and caching change when data moves, not which data: lanes run in lockstep here.
        for hints in (_ORDER, _SCOPE, _CACHE, _HINTS, _HINTS, ("L2::cache_hint",), _PREFETCH_SIZES):
            m.one_of(*hints, default="")
        self.count = int(m.one_of("v2", "v4", "v8", default="v1")[1:])
        self.kind = m.type(*_MEMORY_TYPES)
        m.finish()
        self.element = SCALARS[self.kind].bits // 8
        self.width = self.count * self.element
        if self.width > 32:
            raise m.unknown("wider than 256 bits")


def ld(machine: Machine, ins: Instruction) -> Action:
    """Data Movement and Conversion Instructions: ld, ld.global.nc. A register may be wider than the type."""
    access = _Access(ins)
    target, address = ins.operands[:2]
    items = target.items if isinstance(target, Vector) else (target,)
    place = _checked(access, items, address)

    def action(threads: Threads) -> None:
        if access.space == "param":
            data = _parameter(machine, place, access.width, threads)
        else:
            data = _global_or_shared(machine, access, place, ins, threads, None)
        values = np.ascontiguousarray(data).view(SCALARS[access.kind].view)
        for number, item in enumerate(items):
            machine.write(item, access.kind, np.ascontiguousarray(values[:, number]), threads, relaxed=True)

    return action


def st(machine: Machine, ins: Instruction) -> Action:
    """Data Movement and Conversion Instructions: st. It stores the low bits of a wider register."""
    access = _Access(ins)
    address, source = ins.operands[:2]
    items = source.items if isinstance(source, Vector) else (source,)
    place = _checked(access, items, address)
    if access.space in ("param", "const") or access.non_coherent:
        raise ExecutionError(f"{ins.opcode} is not a store")

    def action(threads: Threads) -> None:
        values = [machine.read(item, access.kind, threads, relaxed=True) for item in items]
        columns = np.stack([np.broadcast_to(value, len(threads)) for value in values], axis=-1)
        data = np.ascontiguousarray(columns).view(np.uint8).reshape(len(threads), access.width)
        _global_or_shared(machine, access, place, ins, threads, data)

    return action


def _checked(access: _Access, items: tuple[Operand, ...], address: Operand) -> Address:
    if len(items) != access.count or not isinstance(address, Address):
        raise ExecutionError(f"expected {access.count} registers and an address")
    return address


def addresses_of(machine: Machine, address: Address, threads: Threads) -> np.ndarray:
    """The address that each thread computes, in its own state space.

    The sum is as wide as its register: compilers leave a part below 0 in a 32-bit one, which the offset makes good.
    """
    width = 64
    match address.base:
        case Integer(value):
            base = np.array([value], np.uint64)
        case Symbol(name, offset):
            base = np.array([machine.address_of(name) + offset], np.uint64)
        case Register(type=kind):
            width = SCALARS[kind].bits
            base = machine.read(address.base, f"u{width}", threads).astype(np.uint64)
    total = base + np.uint64(address.offset % (1 << 64))
    return np.broadcast_to(total & np.uint64((1 << width) - 1), len(threads))


def _parameter(machine: Machine, address: Address, width: int, threads: Threads) -> np.ndarray:
    """ld.param: the same bytes for every thread."""
    match address.base:
        case Symbol(name, offset):
            found = [parameter for parameter in machine.kernel.parameters if parameter.name == name]
            if not found:
                raise ExecutionError(f"{name} is not a parameter")
            at = offset + address.offset
            start = found[0].offset + at
            if at < 0 or at + width > found[0].size or start % width:
                raise ExecutionError(f"reads {width} bytes at byte {at} of parameter {name}, which has {found[0].size}")
            return machine.parameters[start : start + width][None, :]
    raise ExecutionError("parameters are read by name only")


def _global_or_shared(
    machine: Machine, access: _Access, address: Address, ins: Instruction, threads: Threads, data: np.ndarray | None
) -> np.ndarray:
    """Load (`data` None) or store. Generic addresses are all shared or all global."""
    addresses = addresses_of(machine, address, threads)
    space = access.space
    if space == "generic":
        in_shared = addresses >= np.uint64(SHARED_WINDOW)
        space = "shared" if in_shared.all() else "global"
        if space == "shared":
            addresses = addresses - np.uint64(SHARED_WINDOW)
    if space == "shared":
        return shared_access(machine, addresses, access.width, ins, threads, data)
    _check_producer(machine, threads)
    if data is None:
        return machine.memory.load(addresses, access.width, threads, ins, coherent=not access.non_coherent)
    machine.memory.store(addresses, data, threads, ins)
    return data


def _check_producer(machine: Machine, threads: Threads) -> None:
    """A kernel with griddepcontrol.wait touches no global memory before it: the producer may still be writing there."""
    if machine.waits_for_producer and not machine.producer_done[threads].all():
        lane = int(threads[int((~machine.producer_done[threads]).argmax())])
        raise ExecutionError(f"{machine.describe_thread(lane)} touches global memory before griddepcontrol.wait")


def shared_access(
    machine: Machine, offsets: np.ndarray, width: int, ins: Instruction, threads: Threads, data: np.ndarray | None
) -> np.ndarray:
    """Load or store at byte `offsets` of the shared memory of each thread's block."""
    # An offset below 0 is a huge number, and its end may be a small one again.
    outside = (offsets > machine.shared_bytes) | (offsets + np.uint64(width) > machine.shared_bytes)
    if outside.any():
        at = int(outside.argmax())
        who = machine.describe_thread(int(threads[at]))
        raise ExecutionError(f"{who} is out of bounds at byte {offsets[at]} of {machine.shared_bytes} of shared memory")
    addresses = offsets + (machine.block_of[threads] * machine.shared_stride).astype(np.uint64)
    if data is None:
        return machine.shared.load(addresses, width, threads, ins)
    machine.shared.store(addresses, data, threads, ins)
    return data


def prefetch(machine: Machine, ins: Instruction) -> Action:
    """Data Movement and Conversion Instructions: prefetch. It changes no data, but its address must be in bounds."""
    m = Modifiers(ins.root, ins.modifiers, 0)
    m.one_of("global", default="")
    m.one_of("L1", "L2", *_HINTS)
    m.finish()
    (address,) = ins.operands
    if not isinstance(address, Address):
        raise ExecutionError("expected an address")
    return lambda threads: machine.memory.touch(addresses_of(machine, address, threads), threads, ins)


def fence(machine: Machine, ins: Instruction) -> Action:
    """Parallel Synchronization and Communication Instructions: membar, fence. Lockstep lanes need no order."""
    m = Modifiers(ins.root, ins.modifiers, 0)
    m.one_of("sc", "acq_rel", default="")
    m.one_of("cta", "cluster", "gpu", "sys", "gl")
    m.finish()
    return lambda threads: None


ACTIONS: dict[str, Callable[[Machine, Instruction], Action]] = {
    "mov": mov,
    "cvta": cvta,
    "createpolicy": createpolicy,
    "ld": ld,
    "st": st,
    "prefetch": prefetch,
    "fence": fence,
    "membar": fence,
}
