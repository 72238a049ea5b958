"""Device code of the scales: the largest magnitude of a row or block, and its power-of-two scale (steps 4 and 5).

Two magnitudes share a word, and so do their scales: on bf16 bits the contract's exponent is one addition and one mask,
because a bf16 amax times the reciprocal of the largest code passes a power of two exactly where the mantissa of amax
passes that of the largest code (a test compares this with the fp32 formula for every bf16).
"""

from __future__ import annotations

from dataclasses import dataclass

from cutlass import Uint32

from iq_kernels_cute import _abi

from . import ptx
from .config import Variant

MAGNITUDE_PAIR = 0x7FFF7FFF
EXPONENT_PAIR = 0xFF80FF80  # sign bits too: if the carry out of a NaN vanished, its half would borrow from the other
BOTH_HALVES = 0x00010001
BF16_INF = 0x7F80
WARP = 32


@dataclass(frozen=True)
class Format:
    """How a format's scale follows from the bf16 bits of amax: all fields count bf16 mantissa steps or exponents."""

    floor: int  # the bf16 whose scale every smaller amax shares
    carry: int  # what carries a mantissa above the largest code's into the exponent
    code_exponent: int  # of the largest code: 448 is 1.75 * 2**8, 6 is 1.5 * 2**2


FORMATS = {
    "indexer_q_fp8": Format(floor=0x38D2, carry=0x7F - 0x60, code_exponent=8),  # any bf16 from 448*2**-23 to 448*2**-22
    "indexer_q_mxfp4": Format(floor=0x01C0, carry=0x7F - 0x40, code_exponent=2),  # 6 * 2**-126
}


@dataclass(frozen=True)
class Scale:
    """`exponent`: e of scale = 2**(e-127), in the lower half; `inverse`: 2**(127-e) in both bf16 halves.

    `poison`: all ones if an Inf or NaN is among the values, when the other two mean nothing; else zero.
    """

    exponent: Uint32
    inverse: Uint32
    poison: Uint32


def row_scales(v: Variant, rows: list[list[list[Uint32]]]) -> list[list[Scale]]:
    """The scale of every vector, by [head][chunk]: of its row for FP8, of its block of 32 dims for MXFP4."""
    if v.op == "indexer_q_fp8":
        maxima = [_largest(v, [pair for vector in vectors for pair in vector]) for vectors in rows]
        return [[scale] * v.chunks for scale in _scales(v, maxima, v.lanes_per_row)]
    maxima = [_largest(v, vector) for vectors in rows for vector in vectors]
    scales = _scales(v, maxima, _abi.MX_BLOCK // v.vector)
    return [scales[i : i + v.chunks] for i in range(0, len(scales), v.chunks)]


def _largest(v: Variant, pairs: list[Uint32]) -> Uint32:
    """The largest magnitude among the lower halves of `pairs`, and among the upper halves."""
    largest = pairs[0] & MAGNITUDE_PAIR
    for pair in pairs[1:]:
        largest = ptx.max_magnitude_x2(largest, pair & MAGNITUDE_PAIR, v.capability)
    return largest


def _scales(v: Variant, maxima: list[Uint32], lanes: int) -> list[Scale]:
    """One scale for each word of `maxima`, whose larger half is reduced over `lanes` neighbouring lanes."""
    scales: list[Scale] = []
    for i in range(0, len(maxima) - 1, 2):
        scales += _scale_two(v, maxima[i], maxima[i + 1], lanes)
    if len(maxima) % 2:
        scales.append(_scale_one(v, maxima[-1], lanes))
    return scales


def _scale_two(v: Variant, first: Uint32, second: Uint32, lanes: int) -> list[Scale]:
    amax = ptx.max_magnitude_x2(ptx.permute(first, second, 0x5410), ptx.permute(first, second, 0x7632), v.capability)
    amax = _over_lanes(v, amax, lanes)
    exponents, inverses, poisons = _exponents(v, amax)
    low, high = (0x1010, 0x9999), (0x3232, 0xBBBB)  # bytes of a half, and its sign bit on every byte
    return [
        Scale(exponents if half is low else exponents >> 16, *_spread(inverses, poisons, half)) for half in (low, high)
    ]


def _spread(inverses: Uint32, poisons: Uint32, selectors: tuple[int, int]) -> tuple[Uint32, Uint32]:
    return ptx.permute(inverses, inverses, selectors[0]), ptx.permute(poisons, poisons, selectors[1])


def _scale_one(v: Variant, value: Uint32, lanes: int) -> Scale:
    amax = ptx.max_magnitude_x2(value, ptx.permute(value, value, 0x1032), v.capability)
    if lanes == WARP:
        amax = ptx.max_u32_of_warp(amax)  # both halves are alike, so the word orders as they do
        amax = ptx.max_magnitude_x2(amax, FORMATS[v.op].floor * BOTH_HALVES, v.capability)
    else:
        amax = _over_lanes(v, amax, lanes)
    exponents, inverses, poisons = _exponents(v, amax)
    return Scale(exponents >> 16, inverses, ptx.permute(poisons, poisons, 0xBBBB))


def _over_lanes(v: Variant, amax: Uint32, lanes: int) -> Uint32:
    """The larger of each half over `lanes` neighbouring lanes, and of the floor."""
    amax = ptx.max_magnitude_x2(amax, FORMATS[v.op].floor * BOTH_HALVES, v.capability)
    stride = 1
    while stride < lanes:
        amax = ptx.max_magnitude_x2(amax, ptx.shuffle_xor(amax, stride), v.capability)
        stride *= 2
    return amax


def _exponents(v: Variant, amax: Uint32) -> tuple[Uint32, Uint32, Uint32]:
    """Of two bf16 magnitudes: exponents e as 16-bit integers, 2**(127-e) as bf16, sign bits that mark Inf or NaN."""
    form = FORMATS[v.op]
    raised = (amax + form.carry * BOTH_HALVES) & EXPONENT_PAIR  # (e + code_exponent) << 7
    exponents = (raised >> 7) - form.code_exponent * BOTH_HALVES
    inverses = ((254 + form.code_exponent) << 7) * BOTH_HALVES - raised
    return exponents, inverses, amax + (0x8000 - BF16_INF) * BOTH_HALVES
