"""Device code of the Walsh-Hadamard transform over a row (contract, step 3).

Butterflies of strides 1, 2, 4 ... in that order: first inside a vector, then across lanes, then across chunks, which is
how dims are dealt out to a lane.
"""

from __future__ import annotations

import struct

from cutlass import Uint32

from . import ptx
from .config import Variant
from .rotate import Lane

ONE, MINUS_ONE = 0x3F800000, 0xBF800000


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
    values = [list(vector) for vector in vectors]
    for vector in values:
        _in_place(vector)
    for stage, sign in enumerate(signs):
        values = [[ptx.add_signed(x, sign, ptx.shuffle_xor(x, 1 << stage)) for x in vector] for vector in values]
    for position in range(v.vector):
        across = [vector[position] for vector in values]
        _in_place(across)
        for vector, value in zip(values, across, strict=True):
            vector[position] = value
    factor = struct.unpack("I", struct.pack("f", v.head_dim**-0.5))[0]
    return [
        [
            ptx.round_bf16x2(ptx.mul(low, factor), ptx.mul(high, factor))
            for low, high in zip(vector[::2], vector[1::2], strict=True)
        ]
        for vector in values
    ]


def _in_place(values: list[Uint32]) -> None:
    """All butterflies among the values of one lane."""
    stride = 1
    while stride < len(values):
        for i in range(len(values)):
            if not i & stride:
                x, y = values[i], values[i + stride]
                values[i], values[i + stride] = ptx.add(x, y), ptx.sub(x, y)
        stride *= 2
