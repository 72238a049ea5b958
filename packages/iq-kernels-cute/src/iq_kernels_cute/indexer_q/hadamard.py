"""Device code of the Walsh-Hadamard transform over a row (contract, step 3).

Butterflies of strides 1, 2, 4 ... in that order: first inside a vector, then across lanes, then across chunks, which is
how dims are dealt out to a lane. A register holds one fp32, or two neighbours where the target adds two at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cutlass import Int64, Uint32

from . import ptx
from .config import Variant
from .rotate import Lane

ONE, MINUS_ONE = 0x3F800000, 0xBF800000


@dataclass(frozen=True)
class Arithmetic:
    """What the butterflies are made of, over registers of one kind.

    `gather` makes registers of a vector's words, `words` pairs of words of registers; `repeat` a register of one word.
    """

    add: Callable[[Any, Any], Any]
    sub: Callable[[Any, Any], Any]
    add_signed: Callable[[Any, Any, Any], Any]
    mul: Callable[[Any, Any], Any]
    shuffle_xor: Callable[[Any, int], Any]
    repeat: Callable[[Any], Any]
    gather: Callable[[list[Uint32]], list[Any]]
    words: Callable[[list[Any]], Iterable[tuple[Uint32, Uint32]]]


def butterfly_signs(v: Variant, lane: Lane) -> list[Uint32]:
    """For each stride across lanes, 1.0 in the lane that gets the sum and -1.0 in the one that gets the difference."""
    signs = []
    stride = 1
    while stride < v.lanes_per_row:
        signs.append(ptx.select((lane.index & stride) == 0, ONE, MINUS_ONE))
        stride *= 2
    return signs


def hadamard(v: Variant, signs: list[Uint32], vectors: list[list[Uint32]]) -> list[list[Uint32]]:
    """Transform one head's vectors of fp32 words, and round them to bf16 pairs."""
    on = TWO if v.adds_two else ONE_BY_ONE
    values = [on.gather(vector) for vector in vectors]
    for vector in values:
        _in_place(on, vector)
    for stage, sign in enumerate(map(on.repeat, signs)):
        values = [[on.add_signed(x, sign, on.shuffle_xor(x, 1 << stage)) for x in vector] for vector in values]
    for position in range(len(values[0])):
        across = [vector[position] for vector in values]
        _in_place(on, across)
        for vector, value in zip(values, across, strict=True):
            vector[position] = value
    factor = on.repeat(Uint32(struct.unpack("I", struct.pack("f", v.head_dim**-0.5))[0]))
    scaled = [[on.mul(value, factor) for value in vector] for vector in values]
    return [[ptx.round_bf16x2(low, high) for low, high in on.words(vector)] for vector in scaled]


def _in_place(on: Arithmetic, values: list[Any]) -> None:
    """All butterflies among the registers of one lane."""
    stride = 1
    while stride < len(values):
        for i in range(len(values)):
            if not i & stride:
                x, y = values[i], values[i + stride]
                values[i], values[i + stride] = on.add(x, y), on.sub(x, y)
        stride *= 2


def _pairs(words: list[Uint32]) -> Iterable[tuple[Uint32, Uint32]]:
    return zip(words[::2], words[1::2], strict=True)


def _gather_two(words: list[Uint32]) -> list[Int64]:
    """Registers of two neighbours, with the butterflies between the two already done."""
    return [ptx.join(ptx.add(low, high), ptx.sub(low, high)) for low, high in _pairs(words)]


def _shuffle_two(pair: Int64, lanes: int) -> Int64:
    return ptx.join(*(ptx.shuffle_xor(word, lanes) for word in ptx.split(pair)))


ONE_BY_ONE = Arithmetic(ptx.add, ptx.sub, ptx.add_signed, ptx.mul, ptx.shuffle_xor, Uint32, list, _pairs)
TWO = Arithmetic(
    ptx.add_x2, ptx.sub_x2, ptx.add_signed_x2, ptx.mul_x2, _shuffle_two, lambda word: ptx.join(word, word),
    _gather_two, lambda pairs: map(ptx.split, pairs),
)  # fmt: skip
