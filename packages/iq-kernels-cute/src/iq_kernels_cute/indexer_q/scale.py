"""Device code of the scales: the largest magnitude of a row or block, and its power-of-two scale (steps 4 and 5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cutlass import Boolean, Uint32

from .. import _abi
from . import ptx
from .config import Variant

MAGNITUDE_PAIR = 0x7FFF7FFF
BF16_INF = 0x7F80


def _bits(value: float) -> int:
    return int(struct.unpack("I", struct.pack("f", value))[0])


# Smallest amax and the reciprocal of the largest code, as fp32 bits.
LIMITS = {
    "indexer_q_fp8": (_bits(1e-4), _bits(1 / 448)),
    "indexer_q_mxfp4": (_bits(6 * 2.0**-126), _bits(1 / 6)),
}


@dataclass(frozen=True)
class Scale:
    """`exponent`: e of scale = 2**(e-127); `poisoned`: an Inf or NaN is among the values, and e means nothing."""

    exponent: Uint32
    poisoned: Boolean


def row_scales(v: Variant, rows: list[list[list[Uint32]]]) -> list[list[Scale]]:
    """The scale of every vector, by [head][chunk]: of its row for FP8, of its block of 32 dims for MXFP4."""
    if v.op == "indexer_q_fp8":
        maxima = [_largest(v, [pair for vector in vectors for pair in vector]) for vectors in rows]
        lanes = v.lanes_per_row
    else:
        maxima = [_largest(v, vector) for vectors in rows for vector in vectors]
        lanes = _abi.MX_BLOCK // v.vector
    scales = [_scale(v, amax) for amax in _reduce(v, maxima, lanes)]
    if v.op == "indexer_q_fp8":
        return [[scale] * v.chunks for scale in scales]
    return [scales[i : i + v.chunks] for i in range(0, len(scales), v.chunks)]


def _largest(v: Variant, pairs: list[Uint32]) -> Uint32:
    """The largest magnitude among the lower halves of `pairs`, and among the upper halves."""
    largest = pairs[0] & MAGNITUDE_PAIR
    for pair in pairs[1:]:
        largest = ptx.max_magnitude_x2(largest, pair & MAGNITUDE_PAIR, v.capability)
    return largest


def _reduce(v: Variant, maxima: list[Uint32], lanes: int) -> list[Uint32]:
    """Each value's largest half over `lanes` neighbouring lanes, as fp32. Two values share one word on the way."""
    reduced: list[Uint32] = []
    for i in range(0, len(maxima), 2):
        first, second = maxima[i], maxima[min(i + 1, len(maxima) - 1)]
        both = ptx.max_magnitude_x2(
            ptx.permute(first, second, 0x5410), ptx.permute(first, second, 0x7632), v.capability
        )
        stride = 1
        while stride < lanes:
            both = ptx.max_magnitude_x2(both, ptx.shuffle_xor(both, stride), v.capability)
            stride *= 2
        reduced += [ptx.low_f32(both), ptx.high_f32(both)]
    return reduced[: len(maxima)]


def _scale(v: Variant, amax: Uint32) -> Scale:
    floor, reciprocal = LIMITS[v.op]
    ratio = ptx.mul(ptx.max_u32(amax, floor), reciprocal)
    return Scale((ratio + 0x7FFFFF) >> 23, amax >= Uint32(BF16_INF << 16))
