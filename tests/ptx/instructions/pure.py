"""Registry of pure instructions: how one is described, looked up, and applied to plain arrays.

A builder reads an instruction's modifiers and answers with an `Op`: the types of its results and sources and a numpy
function over them. A modifier that no builder takes is an error, so nothing is ever silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ptx.errors import UnknownInstructionError
from tests.ptx.scalars import SCALARS
from tests.ptx.syntax import Instruction


@dataclass(frozen=True)
class Op:
    """What one instruction computes.

    `relaxed`: registers may be wider than the type (PTX ISA, Operand Size Exceeding Instruction-Type Size).
    """

    results: tuple[str, ...]
    sources: tuple[str, ...]
    compute: Callable[..., tuple[np.ndarray, ...]]
    relaxed: bool = False


class Modifiers:
    """The dotted parts of an opcode, taken one by one; what is left at the end is unknown."""

    def __init__(self, root: str, modifiers: tuple[str, ...], source_count: int) -> None:
        self.root = root
        self.source_count = source_count
        self._opcode = ".".join((root, *modifiers))
        self._left = list(modifiers)

    def flag(self, name: str) -> bool:
        """Take `name` if it is there."""
        if name not in self._left:
            return False
        self._left.remove(name)
        return True

    def one_of(self, *names: str, default: str | None = None) -> str:
        """Take the first of `names` that is there."""
        for name in self._left:
            if name in names:
                self._left.remove(name)
                return name
        if default is None:
            raise self.unknown(f"needs one of .{', .'.join(names)}")
        return default

    def types(self, count: int) -> list[str]:
        """Take the last `count` parts, which must be types."""
        types = self._left[len(self._left) - count :]
        if len(types) != count or any(name not in SCALARS for name in types):
            raise self.unknown("its types are not implemented")
        del self._left[len(self._left) - count :]
        return types

    def type(self, *allowed: str) -> str:
        """Take the last part, which must be one of the types `allowed`."""
        (name,) = self.types(1)
        if name not in allowed:
            raise self.unknown(f"type .{name} is not implemented")
        return name

    def finish(self) -> None:
        """Raise UnknownInstructionError if a modifier is left."""
        if self._left:
            raise self.unknown(f"modifier .{self._left[0]} is not implemented")

    def unknown(self, reason: str) -> UnknownInstructionError:
        """The error for this opcode."""
        return UnknownInstructionError(f"unknown instruction {self._opcode}: {reason}")


Builder = Callable[[Modifiers], Op]
PURE: dict[tuple[str, str], Builder] = {}  # (root, the type or the two types at the end of the opcode)


def pure(*roots: str, types: tuple[str, ...]) -> Callable[[Builder], Builder]:
    """Register a builder for the instructions called `roots` whose opcode ends with one of `types`."""

    def register(builder: Builder) -> Builder:
        for root in roots:
            for name in types:
                assert (root, name) not in PURE, (root, name)
                PURE[root, name] = builder
        return builder

    return register


def single(function: Callable[..., np.ndarray]) -> Callable[..., tuple[np.ndarray, ...]]:
    """A one-result function as an `Op.compute`."""
    return lambda *sources: (function(*sources),)


def pure_op(root: str, modifiers: tuple[str, ...], source_count: int) -> Op:
    """The `Op` of an opcode; UnknownInstructionError if there is none."""
    reader = Modifiers(root, modifiers, source_count)
    for kind in (".".join(modifiers[-2:]), modifiers[-1] if modifiers else ""):
        if (root, kind) in PURE:
            break
    else:
        raise reader.unknown("not implemented")
    op = PURE[root, kind](reader)
    reader.finish()
    return op


def instruction_op(instruction: Instruction) -> Op:
    """The `Op` of a parsed instruction."""
    return pure_op(instruction.root, instruction.modifiers, len(instruction.operands) - 1)


def evaluate(opcode: str, *sources: np.ndarray) -> Any:
    """Apply one opcode to arrays of its sources (any dtype of the right width); one array, or one a result."""
    root, *modifiers = opcode.split(".")
    op = pure_op(root, tuple(modifiers), len(sources))
    views = [np.atleast_1d(source).view(SCALARS[kind].view) for source, kind in zip(sources, op.sources, strict=True)]
    with np.errstate(all="ignore"):
        results = op.compute(*views)
    results = tuple(np.asarray(r, dtype=SCALARS[k].view) for r, k in zip(results, op.results, strict=True))
    return results[0] if len(results) == 1 else results
