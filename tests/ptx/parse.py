"""Parse PTX text into `syntax.Module` (PTX ISA, Syntax and Directives). What it does not know is an error."""

from __future__ import annotations

import math
from dataclasses import replace

from .body import BodyParser, variable_declaration
from .errors import PtxSyntaxError
from .scalars import SCALARS
from .syntax import Kernel, Module, Parameter
from .tokens import Tokens


def parse(text: str) -> Module:
    """Parse a PTX file. PtxSyntaxError names the line of what is not understood."""
    tokens = Tokens(text)
    module = Module(version="", target="", kernels={}, variables={})
    while tokens.peek().kind != "end":
        _module_item(tokens, module)
    for kernel in module.kernels.values():
        kernel.variables = {**module.variables, **kernel.variables}
    return module


def _module_item(tokens: Tokens, module: Module) -> None:
    token = tokens.take()
    match token.text:
        case ".version":
            module.version = tokens.take().text
        case ".target":
            module.target = tokens.word()
            tokens.skip_line()
        case ".address_size":
            if tokens.integer() != 64:
                raise PtxSyntaxError(f"line {token.line}: only .address_size 64 is implemented")
        case ".file":
            tokens.skip_line()
        case ".section":
            tokens.word()
            tokens.skip_block()
        case ".visible" | ".extern" | ".weak" | ".common":
            pass
        case ".entry":
            kernel = _entry(tokens)
            module.kernels[kernel.name] = kernel
        case ".global" | ".const" | ".shared":
            for variable in variable_declaration(tokens, token.text[1:]):
                module.variables[variable.name] = variable
        case ";":
            pass
        case other:
            raise PtxSyntaxError(f"line {token.line}: {other!r} is not implemented at module level")


def _entry(tokens: Tokens) -> Kernel:
    name = tokens.word()
    parameters = _parameters(tokens) if tokens.peek().text == "(" else []
    size = parameters[-1].offset + parameters[-1].size if parameters else 0
    kernel = Kernel(name=name, parameters=parameters, parameter_bytes=size)
    while tokens.peek().text != "{":
        token = tokens.take()
        match token.text:
            case ".reqntid":
                kernel.required_threads = _extent(tokens)
            case ".maxntid":
                kernel.maximum_threads = _extent(tokens)
            case ".minnctapersm" | ".maxnreg" | ".maxnctapersm":
                tokens.integer()  # limits for the register allocator; they change no result
            case other:
                raise PtxSyntaxError(f"line {token.line}: kernel directive {other!r} is not implemented")
    BodyParser(tokens, kernel).parse()
    return kernel


def _extent(tokens: Tokens) -> tuple[int, int, int]:
    sizes = [tokens.integer()]
    while tokens.accept(","):
        sizes.append(tokens.integer())
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _parameters(tokens: Tokens) -> list[Parameter]:
    """Kernel parameters, laid out like a C struct: each at the next multiple of its alignment."""
    tokens.take("(")
    parameters: list[Parameter] = []
    end = 0
    while not tokens.accept(")"):
        parameter = _parameter(tokens)
        offset = math.ceil(end / parameter.alignment) * parameter.alignment
        parameters.append(replace(parameter, offset=offset))
        end = offset + parameter.size
        tokens.accept(",")
    return parameters


def _parameter(tokens: Tokens) -> Parameter:
    tokens.take(".param")
    alignment = size = 0
    while tokens.peek().text.startswith("."):
        attribute = tokens.word()[1:]
        if attribute == "align":
            alignment = tokens.integer()
        elif attribute == "ptr":
            _pointer_attribute(tokens)
        elif attribute in SCALARS:
            size = SCALARS[attribute].bits // 8
        else:
            line = tokens.peek().line
            raise PtxSyntaxError(f"line {line}: parameter attribute .{attribute} is not implemented")
    name = tokens.word()
    alignment = alignment or size
    if tokens.accept("["):
        size *= tokens.integer()
        tokens.take("]")
    return Parameter(name=name, offset=0, size=size, alignment=alignment)


def _pointer_attribute(tokens: Tokens) -> None:
    """`.ptr .space .align N` describes what the pointer points to, not the parameter."""
    while tokens.peek().text in (".global", ".const", ".shared", ".local", ".align"):
        if tokens.word() == ".align":
            tokens.integer()
