"""Registers and stack of a kernel, read from its cubin: no tool of a CUDA toolkit is needed.

A cubin is an ELF file; its section .nv.info lists attributes, four bytes each (format, number, size or value), of which
those of format 4 carry `size` bytes of payload: here a symbol's index and a number.
"""

from __future__ import annotations

import struct

REGISTERS, FRAME_SIZE, MIN_STACK_SIZE = 0x2F, 0x11, 0x12
SIZED = 4


def resources(cubin: bytes) -> dict[str, int]:
    """`registers` a thread and `stack` bytes (spills live there) of the one kernel in `cubin`."""
    attributes = _attributes(cubin)
    return {"registers": attributes[REGISTERS], "stack": attributes[FRAME_SIZE] + attributes[MIN_STACK_SIZE]}


def _attributes(cubin: bytes) -> dict[int, int]:
    position, end = _section(cubin, ".nv.info")
    found: dict[int, int] = {}
    while position < end:
        form, number, size = struct.unpack_from("<BBH", cubin, position)
        position += 4
        if form == SIZED:
            if size == 8:
                found[number] = struct.unpack_from("<II", cubin, position)[1]
            position += size
    return found


def _section(elf: bytes, name: str) -> tuple[int, int]:
    """First and last byte of a section of a 64-bit little-endian ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    count, names = struct.unpack_from("<HH", elf, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * i) for i in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        if elf[start : elf.index(b"\0", start)].decode() == name:
            return header[4], header[4] + header[5]
    raise KeyError(name)
