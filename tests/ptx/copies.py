"""Asynchronous copies from global to shared memory that threads have started and not yet waited for.

PTX ISA, Asynchronous copy, Async-group mechanism: each thread commits the copies it has started to a group, groups
complete in the order of their commits, and a copy's bytes may be read by its thread once it has waited for the group;
by other threads once a barrier has followed that wait.

The ISA says nothing of a thread that ends with copies under way, so that is no error; but then nobody has waited for
their bytes, and whoever reads or overwrites them is caught.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .shared import SharedMemory
from .syntax import Instruction


@dataclass(frozen=True)
class _Copy:
    """What threads copy with one instruction: destinations, uint8 (threads, width), and each thread's group."""

    threads: np.ndarray
    addresses: np.ndarray
    data: np.ndarray
    group: np.ndarray
    line: int

    def only(self, chosen: np.ndarray) -> _Copy:
        """Some of the threads."""
        return _Copy(self.threads[chosen], self.addresses[chosen], self.data[chosen], self.group[chosen], self.line)


class Copies:
    """The copies into `shared` of up to `lanes` threads."""

    def __init__(self, shared: SharedMemory, lanes: int) -> None:
        self._shared = shared
        self._committed = np.zeros(lanes, np.int64)  # groups of each thread
        self._under_way: list[_Copy] = []

    def start(self, addresses: np.ndarray, data: np.ndarray, threads: np.ndarray, ins: Instruction) -> None:
        """Start copies that will write `data`, uint8 (threads, width), to `addresses`."""
        self._shared.begin_copy(addresses, data.shape[1], threads, ins)
        self._under_way.append(_Copy(threads, addresses, data, self._committed[threads], ins.line))

    def commit(self, threads: np.ndarray) -> None:
        """Make a group, perhaps an empty one, of what each thread has started since its last."""
        self._committed[threads] += 1

    def wait(self, threads: np.ndarray, most: int) -> None:
        """Let all but the `most` latest groups of each of `threads` complete."""
        waits = np.zeros(len(self._committed), bool)
        waits[threads] = True
        left = []
        for copy in self._under_way:
            done = waits[copy.threads] & (copy.group < self._committed[copy.threads] - most)
            if done.any():
                landed = copy.only(done)
                self._shared.finish_copy(landed.addresses, landed.data, landed.threads, landed.line)
            if not done.all():
                left.append(copy.only(~done))
        self._under_way = left
