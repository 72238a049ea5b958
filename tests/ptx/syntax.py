"""The parsed form of a PTX module: operands, instructions, parameters, variables, kernels."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Register:
    """A declared register. `name` is unique in the kernel: an inner scope's register has `#n` behind its name."""

    name: str
    type: str


@dataclass(frozen=True)
class Special:
    """A predefined read-only register such as %tid.x (PTX ISA, Special Registers)."""

    name: str


@dataclass(frozen=True)
class Integer:
    """An integer constant, possibly negative."""

    value: int


@dataclass(frozen=True)
class Float:
    """A floating-point constant, exact: 0fXXXXXXXX and 0dXXXXXXXXXXXXXXXX keep their bits (NaN payloads too)."""

    bits: int
    width: int  # 32 or 64


@dataclass(frozen=True)
class Symbol:
    """A label, a parameter or a variable, with a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """`[base + offset]`."""

    base: Register | Symbol | Integer
    offset: int


@dataclass(frozen=True)
class Negated:
    """`!%p`, a predicate read inverted."""

    register: Register


@dataclass(frozen=True)
class Sink:
    """`_`, a result that is thrown away."""


@dataclass(frozen=True)
class Vector:
    """`{a, b, ...}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """`d|p`, a value and a predicate result."""

    first: Operand
    second: Operand


Operand = Register | Special | Integer | Float | Symbol | Address | Negated | Sink | Vector | Pair


@dataclass(frozen=True)
class Instruction:
    """One instruction. `modifiers` are the dotted parts behind `root`; `line` counts from 1 in the PTX text."""

    root: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | Negated | None
    line: int

    @property
    def opcode(self) -> str:
        """The opcode as written, `ld.global.v4.b32`."""
        return ".".join((self.root, *self.modifiers))

    def __str__(self) -> str:
        return f"line {self.line}: {self.opcode}"


def results(instruction: Instruction) -> list[Register]:
    """The registers that an instruction writes: those of its first operand, unless it stores or branches."""
    if not instruction.operands or instruction.root in ("st", "stmatrix", "bra", "bar", "barrier"):
        return []
    first = instruction.operands[0]
    places = first.items if isinstance(first, Vector) else (first,)
    if isinstance(first, Pair):
        places = (first.first, first.second)
    return [place for place in places if isinstance(place, Register)]


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: its byte offset in the parameter block, its size and alignment in bytes."""

    name: str
    offset: int
    size: int
    alignment: int


@dataclass(frozen=True)
class Variable:
    """A variable in .shared, .global or .const space; `size` 0 is an extern array sized by the launch."""

    name: str
    space: str
    size: int
    alignment: int
    initial: bytes | None = None


@dataclass
class Kernel:
    """A `.entry`: parameters, launch bounds, shared variables, instructions, and the label of each branch target."""

    name: str
    parameters: list[Parameter]
    parameter_bytes: int
    required_threads: tuple[int, int, int] | None = None  # .reqntid
    maximum_threads: tuple[int, int, int] | None = None  # .maxntid
    variables: dict[str, Variable] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)  # name -> type
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass
class Module:
    """A PTX file."""

    version: str
    target: str
    kernels: dict[str, Kernel]
    variables: dict[str, Variable]

    def kernel(self) -> Kernel:
        """The only kernel of the module; ValueError if there are more or none."""
        if len(self.kernels) != 1:
            raise ValueError(f"expected one kernel in the module, found {sorted(self.kernels)}")
        return next(iter(self.kernels.values()))
