"""What the interpreter raises: every error carries the PTX line, and the thread where there is one."""

from __future__ import annotations


class PtxError(Exception):
    """Base of all errors of the interpreter."""


class PtxSyntaxError(PtxError):
    """PTX text that the parser does not understand."""


class UnknownInstructionError(PtxError):
    """An instruction, or a modifier of one, that the interpreter does not implement."""


class ExecutionError(PtxError):
    """A program that misbehaved: a race, a lane missing from a shuffle, a register read before it was written."""


class MemoryAccessError(ExecutionError):
    """An access out of bounds, misaligned, of unwritten bytes, to read-only memory, or in conflict with a thread."""
