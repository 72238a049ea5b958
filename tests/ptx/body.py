"""Parse a kernel's body: declarations, labels, scopes, guarded instructions and their operands."""

from __future__ import annotations

import struct

from .errors import PtxSyntaxError
from .scalars import SCALARS
from .syntax import (
    Address,
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
    Variable,
    Vector,
)
from .tokens import Tokens, integer_value

SPECIAL_REGISTERS = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    + ["%laneid", "%warpid", "%nwarpid"]
    + [f"%lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")]
)


def variable_declaration(tokens: Tokens, space: str) -> list[Variable]:
    """Parse `.align N .type name[size] = {...};` behind its state space."""
    alignment, element = 0, ""
    while tokens.peek().text.startswith("."):
        attribute = tokens.word()[1:]
        if attribute == "align":
            alignment = tokens.integer()
        elif attribute in SCALARS:
            element = attribute
        else:
            raise PtxSyntaxError(f"line {tokens.peek().line}: variable attribute .{attribute} is not implemented")
    width = SCALARS[element].bits // 8
    name, count = tokens.word(), 1
    while tokens.accept("["):
        count *= 0 if tokens.peek().text == "]" else tokens.integer()
        tokens.take("]")
    initial = None
    if tokens.accept("="):
        initial = _initializer(tokens, width).ljust(count * width, b"\0")
    tokens.take(";")
    return [Variable(name, space, count * width, alignment or width, initial)]


def _initializer(tokens: Tokens, width: int) -> bytes:
    if not tokens.accept("{"):
        return (tokens.integer() % (1 << 8 * width)).to_bytes(width, "little")
    values = b""
    while not tokens.accept("}"):
        values += (tokens.integer() % (1 << 8 * width)).to_bytes(width, "little")
        tokens.accept(",")
    return values


class BodyParser:
    """Fills a `Kernel` from the tokens between its braces."""

    def __init__(self, tokens: Tokens, kernel: Kernel) -> None:
        self._tokens = tokens
        self._kernel = kernel
        self._scopes: list[dict[str, Register]] = []
        self._scope_count = 0

    def parse(self) -> None:
        """Parse up to the brace that closes the body, then check that every branch target exists."""
        self._tokens.take("{")
        self._scopes.append({})
        while self._scopes:
            self._statement()

    def _statement(self) -> None:
        tokens = self._tokens
        token = tokens.peek()
        if token.kind == "end":
            raise PtxSyntaxError(f"line {token.line}: the body of {self._kernel.name} is not closed")
        if tokens.accept("{"):
            self._scope_count += 1
            self._scopes.append({})
        elif tokens.accept("}"):
            self._scopes.pop()
        elif tokens.accept(";"):
            pass
        elif token.text.startswith("."):
            self._directive(tokens.word(), token.line)
        elif tokens.peek(1).text == ":" and token.kind == "word":
            self._kernel.labels[tokens.word()] = len(self._kernel.instructions)
            tokens.take(":")
        else:
            self._instruction()

    def _directive(self, name: str, line: int) -> None:
        tokens = self._tokens
        if name == ".reg":
            self._registers()
        elif name == ".shared":
            for variable in variable_declaration(tokens, "shared"):
                self._kernel.variables[variable.name] = variable
        elif name in (".loc", ".file"):
            tokens.skip_line()
        elif name == ".pragma":
            while tokens.take().text != ";":
                pass
        else:
            raise PtxSyntaxError(f"line {line}: directive {name} is not implemented in a body")

    def _registers(self) -> None:
        tokens = self._tokens
        kind = tokens.word()[1:]
        if kind not in SCALARS:
            raise PtxSyntaxError(f"line {tokens.peek().line}: register type .{kind} is not implemented")
        while True:
            name = tokens.word()
            names = [name]
            if tokens.accept("<"):
                names = [f"{name}{number}" for number in range(tokens.integer())]
                tokens.take(">")
            for each in names:
                unique = each if len(self._scopes) == 1 else f"{each}#{self._scope_count}"
                self._scopes[-1][each] = Register(unique, kind)
                self._kernel.registers[unique] = kind
            if tokens.take(",", ";").text == ";":
                return

    def _instruction(self) -> None:
        tokens = self._tokens
        guard = None
        if tokens.accept("@"):
            negated = tokens.accept("!")
            register = self._register(tokens.word())
            guard = Negated(register) if negated else register
        line = tokens.peek().line
        root, *modifiers = tokens.word().split(".")
        operands: list[Operand] = []
        while not tokens.accept(";"):
            operands.append(self._operand())
            if tokens.peek().text != ";":
                tokens.take(",")
        self._kernel.instructions.append(Instruction(root, tuple(modifiers), tuple(operands), guard, line))

    def _operand(self) -> Operand:
        tokens = self._tokens
        if tokens.accept("["):
            return self._address()
        if tokens.accept("{"):
            items = [self._operand()]
            while tokens.accept(","):
                items.append(self._operand())
            tokens.take("}")
            return Vector(tuple(items))
        if tokens.accept("!"):
            return Negated(self._register(tokens.word()))
        token = tokens.peek()
        if token.text == "-" or token.kind in ("integer", "float"):
            return self._constant()
        first = self._name(tokens.word())
        if tokens.accept("|"):
            return Pair(first, self._name(tokens.word()))
        return first

    def _constant(self) -> Operand:
        tokens = self._tokens
        negative = tokens.accept("-")
        token = tokens.take()
        if token.kind == "integer":
            value = integer_value(token.text)
            return Integer(-value if negative else value)
        if token.kind != "float":
            raise PtxSyntaxError(f"line {token.line}: expected a constant, found {token.text!r}")
        if token.text[:2].lower() == "0f":
            bits, width = int(token.text[2:], 16), 32
        elif token.text[:2].lower() == "0d":
            bits, width = int(token.text[2:], 16), 64
        else:
            bits, width = struct.unpack("<Q", struct.pack("<d", float(token.text)))[0], 64
        return Float(bits ^ (negative << width - 1), width)

    def _address(self) -> Address:
        tokens = self._tokens
        if tokens.peek().kind == "integer":
            base: Register | Symbol | Integer = Integer(tokens.integer())
        else:
            operand = self._name(tokens.word())
            if not isinstance(operand, (Register, Symbol)):
                raise PtxSyntaxError(f"line {tokens.peek().line}: {operand} cannot be an address")
            base = operand
        offset = 0
        while tokens.peek().text in ("+", "-"):
            plus = tokens.take().text == "+"
            value = tokens.integer()
            offset += value if plus else -value
        tokens.take("]")
        return Address(base, offset)

    def _name(self, name: str) -> Operand:
        if name == "_":
            return Sink()
        if name in SPECIAL_REGISTERS:
            return Special(name)
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        if name.startswith("%"):
            raise PtxSyntaxError(f"line {self._tokens.peek().line}: register {name} is not declared")
        if self._tokens.peek().text == "+":
            self._tokens.take("+")
            return Symbol(name, self._tokens.integer())
        return Symbol(name)

    def _register(self, name: str) -> Register:
        operand = self._name(name)
        if not isinstance(operand, Register):
            raise PtxSyntaxError(f"line {self._tokens.peek().line}: {name} is not a register")
        return operand
