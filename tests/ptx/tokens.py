"""Cut PTX text into tokens with their line numbers (PTX ISA, Syntax: source format, comments, constants)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import PtxSyntaxError

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+ | //[^\n]* | /\*.*?\*/)
  | (?P<string>"[^"\n]*")
  | (?P<float>0[fF][0-9a-fA-F]{8}(?![0-9a-fA-F]) | 0[dD][0-9a-fA-F]{16} | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+)
  | (?P<integer>0[xX][0-9a-fA-F]+U? | 0[bB][01]+U? | \d+U?)
  | (?P<word>[A-Za-z_$%.][\w$.%]*(?:::[\w.]+)*)
  | (?P<mark>[][{}(),;:@!|+\-=<>])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """`kind` is string, float, integer, word, mark or end."""

    kind: str
    text: str
    line: int


class Tokens:
    """A cursor over the tokens of a PTX text."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_scan(text)]
        last_line = self._tokens[-1].line if self._tokens else 1
        self._tokens.append(Token("end", "end of file", last_line))
        self._at = 0

    def peek(self, ahead: int = 0) -> Token:
        """The token `ahead` places on, without taking it."""
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def take(self, *texts: str) -> Token:
        """Take the next token; with `texts` it must be one of them."""
        token = self.peek()
        if texts and token.text not in texts:
            raise PtxSyntaxError(f"line {token.line}: expected {' or '.join(map(repr, texts))}, found {token.text!r}")
        self._at += 1
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is `text`."""
        if self.peek().text != text:
            return False
        self._at += 1
        return True

    def word(self) -> str:
        """Take a word."""
        token = self.take()
        if token.kind != "word":
            raise PtxSyntaxError(f"line {token.line}: expected a name, found {token.text!r}")
        return token.text

    def integer(self) -> int:
        """Take an integer constant, with its sign."""
        negative = self.accept("-")
        token = self.take()
        if token.kind != "integer":
            raise PtxSyntaxError(f"line {token.line}: expected an integer, found {token.text!r}")
        value = integer_value(token.text)
        return -value if negative else value

    def skip_line(self) -> None:
        """Drop what is left of the line of the token taken last (.loc, .file)."""
        line = self._tokens[self._at - 1].line
        while self.peek().line == line and self.peek().kind != "end":
            self._at += 1

    def skip_block(self) -> None:
        """Drop a balanced `{ ... }` (.section)."""
        self.take("{")
        depth = 1
        while depth:
            token = self.take()
            if token.kind == "end":
                raise PtxSyntaxError(f"line {token.line}: a block is not closed")
            depth += (token.text == "{") - (token.text == "}")


def integer_value(text: str) -> int:
    """The value of an unsigned integer constant: hexadecimal, octal, binary or decimal."""
    digits = text.rstrip("U")
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return int(digits, 8)
    return int(digits, 0)


def _scan(text: str) -> Iterator[Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PtxSyntaxError(f"line {line}: cannot read {text[at : at + 20]!r}")
        kind = str(match.lastgroup)
        if kind != "space":
            yield Token(kind, match.group(), line)
        line += match.group().count("\n")
        at = match.end()
