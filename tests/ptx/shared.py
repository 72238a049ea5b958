"""Shared memory: which access happens before which, by the barriers between them.

Two threads that access one byte, one of them to write it, must have passed a barrier between the two accesses: one of
their block, or, within a warp, one of all its lanes (PTX ISA, Memory Consistency Model: causality order by barriers;
bar{.warp}.sync order the memory accesses of those who take part). Anything else is a race and an error, in whatever
order the interpreter happens to run them. One instruction may store equal bytes to one place: compilers let lanes that
hold copies of one value all store it.
"""

from __future__ import annotations

import numpy as np

from .memory import WARP, DescribeThread, Memory, Region
from .syntax import Instruction

_NOBODY, _SEVERAL = 0, -1  # threads and warps are kept from 1 up, so that fresh pages of zeros need no filling


class SharedMemory(Memory):
    """`size` bytes, those of all blocks one after the other, for `lanes` threads."""

    equal_stores_may_meet = True

    def __init__(self, describe_thread: DescribeThread, lanes: int, size: int) -> None:
        super().__init__(describe_thread)
        self._region = self.add(Region("shared memory", 0, size, writable=True))
        length = len(self._region.data)
        # Barriers passed, the block's and the warp's: by each thread so far, and when a byte was last written or read.
        self._epochs = np.zeros((2, lanes), np.int32)
        self._written = np.zeros((2, length), np.int32)
        self._read = np.zeros((2, length), np.int32)
        # Who read a byte since the last barrier of its block or, if that is one warp, since the last one of the warp.
        self._reader = np.zeros(length, np.int32)
        self._reader_warp = np.zeros(length, np.int32)
        self._reader_line = np.zeros(length, np.int32)

    def pass_barrier(self, threads: np.ndarray, whole_block: bool) -> None:
        """Order what `threads` did before against what they do from now on: all of a block, or all of a warp."""
        self._epochs[0 if whole_block else 1, threads] += 1

    def _check_read(self, region: Region, rows: np.ndarray, width: int, who: np.ndarray, ins: Instruction) -> None:
        super()._check_read(region, rows, width, who, ins)
        self._note_read(_bytes(rows, width), who, ins)

    def _check_write(self, region: Region, rows: np.ndarray, width: int, who: np.ndarray, ins: Instruction) -> None:
        super()._check_write(region, rows, width, who, ins)
        self._check_readers(region, rows, width, who, ins)

    def _written_before(self, rows: np.ndarray, width: int, writer: np.ndarray, who: np.ndarray) -> np.ndarray:
        before = self._written.reshape(2, -1, width)[:, rows] < self._epochs[:, who, None]
        return before[0] | (before[1] & (writer // WARP == who[:, None] // WARP))

    def _note_write(self, rows: np.ndarray, width: int, who: np.ndarray) -> None:
        self._written.reshape(2, -1, width)[:, rows] = self._epochs[:, who, None]

    def _note_read(self, places: np.ndarray, who: np.ndarray, ins: Instruction) -> None:
        """Join the readers of each byte, after forgetting those whom a barrier orders before anything from now on."""
        of_block, of_warp = (np.broadcast_to(each[:, None], places.shape) for each in self._epochs[:, who])
        thread, warp = (np.broadcast_to(each[:, None] + 1, places.shape) for each in (who, who // WARP))
        old = places[self._read[0, places] < of_block]
        self._reader[old] = self._reader_warp[old] = _NOBODY
        old = places[(self._reader_warp[places] == warp) & (self._read[1, places] < of_warp)]
        self._reader[old] = _NOBODY
        for known, mine in ((self._reader, thread), (self._reader_warp, warp)):
            before = known[places]
            known[places] = np.where((before == _NOBODY) | (before == mine), mine, _SEVERAL)
            known[places[known[places] != mine]] = _SEVERAL  # others read the byte in this same instruction
        self._read[0, places], self._read[1, places] = of_block, of_warp
        self._reader_line[places] = ins.line

    def _check_readers(self, region: Region, rows: np.ndarray, width: int, who: np.ndarray, ins: Instruction) -> None:
        places = _bytes(rows, width)
        since_block, since_warp = self._read[:, places] == self._epochs[:, who, None]
        reader, warp = self._reader[places], self._reader_warp[places]
        elsewhere = (warp != _NOBODY) & (warp != who[:, None] // WARP + 1)
        beside = (reader != _NOBODY) & (reader != who[:, None] + 1) & since_warp
        conflict = since_block & (elsewhere | beside)
        if conflict.any():
            at = tuple(np.argwhere(conflict)[0])
            thread = "several threads" if reader[at] == _SEVERAL else self._describe_thread(int(reader[at]) - 1)
            line = int(self._reader_line[places][at])
            what = f"writes a byte that {thread} read at line {line} with no barrier since"
            self._fail_at(ins, region, rows, width, who, conflict, what)


def _bytes(rows: np.ndarray, width: int) -> np.ndarray:
    """The bytes (rows, width) of storage rows of `width` bytes."""
    return rows[:, None] * width + np.arange(width)
