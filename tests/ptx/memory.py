"""Memory of a launch: registered tensors, each access checked byte by byte.

Checked: the access lies inside one region; its address is a multiple of its width (PTX ISA, Addresses as Operands);
nothing reads a byte nobody wrote; no two threads write the same byte, and none reads what another wrote; read-only
regions are not written. An error names the PTX line, the thread and the region. In shared memory barriers order
accesses: `shared.py`. Not checked in global memory: that a thread overwrites what another has yet to read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .errors import MemoryAccessError
from .syntax import Instruction

NOBODY = -1
WARP = 32
SHARED_WINDOW = 1 << 60  # where cvta puts .shared in the generic address space: above every device address
_UNIT = 256  # storage begins at a multiple of this, so that aligned accesses are aligned in storage too

DescribeThread = Callable[[int], str]


@dataclass
class Region:
    """`size` bytes at `base`. `data`, `known` and `writer` are stored from the multiple of 256 below `base`."""

    name: str
    base: int
    size: int
    writable: bool
    data: np.ndarray = field(init=False)
    known: np.ndarray = field(init=False)  # 1: the byte has a value
    writer: np.ndarray = field(init=False)  # thread that wrote the byte during the launch
    line: np.ndarray = field(init=False)  # PTX line of that store

    def __post_init__(self) -> None:
        self.origin = self.base // _UNIT * _UNIT
        length = -(-(self.base + self.size - self.origin) // _UNIT) * _UNIT
        self.data = np.zeros(length, np.uint8)
        self.known = np.zeros(length, np.uint8)
        if self.writable:
            self.writer = np.full(length, NOBODY, np.int32)
            self.line = np.zeros(length, np.int32)

    def fill(self, content: np.ndarray, known: np.ndarray | None = None) -> None:
        """Give the region its bytes before the launch; `known` marks those that have a value (all, if left out)."""
        start = self.base - self.origin
        self.data[start : start + self.size] = content
        self.known[start : start + self.size] = 1 if known is None else known

    @property
    def content(self) -> np.ndarray:
        """The region's bytes."""
        start = self.base - self.origin
        return self.data[start : start + self.size]

    def written_by(self, byte: int) -> tuple[int, int]:
        """The thread (NOBODY if none) that wrote `byte` of the region, and the PTX line."""
        at = self.base - self.origin + byte
        return int(self.writer[at]), int(self.line[at])


class Memory:
    """The regions of one address space. `describe_thread` names a thread in errors."""

    equal_stores_may_meet = False  # whether one instruction may store equal bytes to one place

    def __init__(self, describe_thread: DescribeThread) -> None:
        self._describe_thread = describe_thread
        self._regions: list[Region] = []
        self._bases = np.zeros(0, np.int64)

    def add(self, region: Region) -> Region:
        """Register a region; it may not overlap another."""
        for other in self._regions:
            if region.base < other.base + other.size and other.base < region.base + region.size:
                raise ValueError(f"region {region.name} overlaps {other.name}")
        self._regions.append(region)
        self._regions.sort(key=lambda each: each.base)
        self._bases = np.array([each.base for each in self._regions], np.int64)
        return region

    def load(
        self, addresses: np.ndarray, width: int, threads: np.ndarray, ins: Instruction, coherent: bool = True
    ) -> np.ndarray:
        """Read `width` bytes for each thread: uint8 (threads, width). `coherent` False is ld.global.nc."""
        result = np.empty((len(addresses), width), np.uint8)
        for region, chosen, rows in self._located(addresses, width, threads, ins, "reads"):
            who = threads[chosen]
            if not coherent and region.writable:
                self._fail(ins, int(who[0]), f"reads {region.name}, which the kernel may write, with .nc")
            if region.writable:
                self._check_read(region, rows, width, who, ins)
            known = region.known.reshape(-1, width)[rows]
            if not known.all():
                self._fail_at(ins, region, rows, width, who, known == 0, "reads a byte nobody wrote")
            result[chosen] = region.data.reshape(-1, width)[rows]
        return result

    def store(self, addresses: np.ndarray, values: np.ndarray, threads: np.ndarray, ins: Instruction) -> None:
        """Write uint8 (threads, width)."""
        width = values.shape[1]
        for region, chosen, rows in self._located(addresses, width, threads, ins, "writes"):
            who = threads[chosen]
            if not region.writable:
                self._fail_at(
                    ins, region, rows, width, who, np.ones((len(rows), width), bool), "writes read-only memory"
                )
            self._check_write(region, rows, width, who, ins)
            writer = region.writer.reshape(-1, width)
            writer[rows] = who[:, None]
            region.data.reshape(-1, width)[rows] = values[chosen]
            lost = writer[rows] != who[:, None]
            if self.equal_stores_may_meet:
                lost &= region.data.reshape(-1, width)[rows] != values[chosen]
            if lost.any():
                other = int(writer[rows][lost][0])
                what = f"writes, in the same instruction, a byte written by {self._describe_thread(other)}"
                self._fail_at(ins, region, rows, width, who, lost, what)
            region.known.reshape(-1, width)[rows] = 1
            region.line.reshape(-1, width)[rows] = ins.line
            self._note_write(rows, width, who)

    def touch(self, addresses: np.ndarray, threads: np.ndarray, ins: Instruction) -> None:
        """Check that each address lies in a region; nothing is read."""
        self._located(addresses, 1, threads, ins, "prefetches")

    def _located(
        self, addresses: np.ndarray, width: int, threads: np.ndarray, ins: Instruction, verb: str
    ) -> list[tuple[Region, slice | np.ndarray, np.ndarray]]:
        """Group accesses by region: which of the addresses, and the storage rows of `width` bytes they touch."""
        addresses = addresses.astype(np.int64)
        misaligned = addresses % width != 0
        if misaligned.any():
            at = int(misaligned.argmax())
            self._fail(ins, int(threads[at]), f"{verb} {width} bytes at {addresses[at]:#x}, not a multiple of {width}")
        places = np.searchsorted(self._bases, addresses, side="right") - 1
        found = []
        for place in np.unique(places):
            region = self._regions[max(int(place), 0)] if self._regions else Region("nothing", 0, 0, False)
            everywhere = bool((places == place).all())
            chosen: slice | np.ndarray = slice(None) if everywhere else np.flatnonzero(places == place)
            here = addresses[chosen]
            outside = (here < region.base) | (here + width > region.base + region.size)
            if outside.any():
                at = int(outside.argmax())
                offset = int(here[at]) - region.base
                self._fail(
                    ins,
                    int(threads[chosen][at]),
                    f"{verb} {width} bytes out of bounds at {here[at]:#x}, byte {offset} of {region.name}, "
                    f"which has {region.size} bytes",
                )
            found.append((region, chosen, (here - region.origin) // width))
        return found

    def _check_read(self, region: Region, rows: np.ndarray, width: int, who: np.ndarray, ins: Instruction) -> None:
        """Before a thread reads a byte of a writable region."""
        self._check_writers(region, rows, width, who, ins, "reads a byte written by")

    def _check_write(self, region: Region, rows: np.ndarray, width: int, who: np.ndarray, ins: Instruction) -> None:
        """Before a thread writes a byte."""
        self._check_writers(region, rows, width, who, ins, "writes a byte written by")

    def _note_write(self, rows: np.ndarray, width: int, who: np.ndarray) -> None:
        """After a thread has written a byte."""

    def _written_before(self, rows: np.ndarray, width: int, writer: np.ndarray, who: np.ndarray) -> np.ndarray | bool:
        """Which bytes' writes are ordered before what `who` does now: in global memory none."""
        return False

    def _check_writers(
        self, region: Region, rows: np.ndarray, width: int, who: np.ndarray, ins: Instruction, what: str
    ) -> None:
        writer = region.writer.reshape(-1, width)[rows]
        conflict = (writer != NOBODY) & (writer != who[:, None])
        if conflict.any():
            conflict &= np.logical_not(self._written_before(rows, width, writer, who))
        if conflict.any():
            at = tuple(np.argwhere(conflict)[0])
            other = self._describe_thread(int(writer[at]))
            line = int(region.line.reshape(-1, width)[rows][at])
            self._fail_at(ins, region, rows, width, who, conflict, f"{what} {other} at line {line}")

    def _fail_at(
        self,
        ins: Instruction,
        region: Region,
        rows: np.ndarray,
        width: int,
        who: np.ndarray,
        bad: np.ndarray,
        what: str,
    ) -> None:
        row, column = np.argwhere(bad)[0]
        byte = int(rows[row]) * width + int(column) - (region.base - region.origin)
        self._fail(ins, int(who[row]), f"{what}: byte {byte} of {region.name}")

    def _fail(self, ins: Instruction, thread: int, what: str) -> None:
        raise MemoryAccessError(f"{ins}: {self._describe_thread(thread)} {what}")
