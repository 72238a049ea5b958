"""Device code of the encodings: bf16 pairs and a scale exponent to e4m3fn bytes or E2M1 nibbles (contract, step 5).

Multiplying a bf16 by 2**(127-e) is exact: the product stays below 512, and one that falls among the bf16 subnormals is
far below half of the smallest code. The integer and FMA forms serve targets without the conversion in hardware; a test
proves each over all bf16 values.
"""

from __future__ import annotations

from cutlass import Uint32

from . import ptx
from .config import Variant
from .scale import BOTH_HALVES, MAGNITUDE_PAIR, Scale

MINUS_ZERO_PAIR = 0x80008000
SIGN_OF_CODE_PAIR = 0x00080008  # where a shift by 12 takes the sign of a bf16
CODE_ONE = 0x4300  # bf16 128.0; its last bit counts ones
QUAD_OFFSETS = (CODE_ONE * BOTH_HALVES + 16 * (CODE_ONE + (CODE_ONE >> 8)) * BOTH_HALVES) % 2**32
FP8_NAN_WORD = 0x7F7F7F7F


def encode(v: Variant, pairs: list[Uint32], scale: Scale) -> list[Uint32]:
    """One vector's codes, packed into words; a vector of 4 gives one word whose lower half counts for MXFP4.

    Of a poisoned vector: FP8 gives the code of NaN everywhere, MXFP4 gives no code to rely on.
    """
    if v.op == "indexer_q_mxfp4":
        return _e2m1_hardware(pairs, scale) if v.hardware_e2m1 else _e2m1_packed(v, pairs, scale)
    quads = list(zip(pairs[::2], pairs[1::2], strict=True))
    if v.hardware_e4m3:
        factor = scale.inverse | scale.poison  # all ones is a NaN
        return [_e4m3_hardware(first, second, factor) for first, second in quads]
    words = [_e4m3_packed(first, second, scale.inverse) for first, second in quads]
    return [(word & ~scale.poison) | (scale.poison & FP8_NAN_WORD) for word in words]


def _scaled(pair: Uint32, factor: Uint32) -> list[Uint32]:
    """Both halves times a power of two, as fp32."""
    product = ptx.fma_bf16x2(pair, factor, MINUS_ZERO_PAIR)  # x + -0 keeps the sign of zero
    return [ptx.low_f32(product), ptx.high_f32(product)]


def _e4m3_hardware(first: Uint32, second: Uint32, factor: Uint32) -> Uint32:
    return ptx.round_e4m3x4(_scaled(first, factor) + _scaled(second, factor))


def _e4m3_packed(first: Uint32, second: Uint32, factor: Uint32) -> Uint32:
    codes = [_e4m3_magnitudes(pair & MAGNITUDE_PAIR, factor) for pair in (first, second)]
    signs = ptx.permute(first, second, 0x7531) & 0x80808080
    return ptx.permute(codes[0], codes[1], 0x6420) | signs


def _e4m3_magnitudes(magnitudes: Uint32, factor: Uint32) -> Uint32:
    """e4m3fn codes of two magnitudes, each in the low byte of a half: the median of subnormal rule, 8 and normal rule.

    Subnormal: adding 2**-2, whose last bf16 bit is 2**-9, rounds to steps of 2**-9. Normal: keep 3 of 7 mantissa bits.
    The normal rule is the smaller below 2**-6 and the larger above it, where the other one passes 8. Both carry the
    exponent bias difference of 120 (960 in the last place) until the end, so that no half borrows from the other.
    """
    subnormal = (
        ptx.min_bf16x2(ptx.fma_bf16x2(magnitudes, factor, 0x3E803E80), 0x3E883E88) - (0x3E80 - 960) * BOTH_HALVES
    )
    bits = ptx.fma_bf16x2(magnitudes, factor, 0)
    odd = (bits >> 4) & BOTH_HALVES
    normal = ((bits + odd + 7 * BOTH_HALVES) >> 4) & 0x0FFF0FFF
    return ptx.max_bf16x2(subnormal, normal) - 960 * BOTH_HALVES


def _e2m1_hardware(pairs: list[Uint32], scale: Scale) -> list[Uint32]:
    values = [value for pair in pairs for value in _scaled(pair, scale.inverse)]
    return [ptx.round_e2m1(values[i : i + 8]) for i in range(0, len(values), 8)]


def _e2m1_packed(v: Variant, pairs: list[Uint32], scale: Scale) -> list[Uint32]:
    """E2M1 codes by three FMAs: the code of y is the least of 2y, y + 2 and y/2 + 4, a tie rounded to an even integer.

    Around 128 a bf16 counts in steps of one, so that each FMA rounds once, to that grid, and leaves the code in its low
    bits. y is magnitude * 2**(127-e); the factors 2**(128-e) ... 2**(126-e) go from 2**127 to the subnormal 2**-127.
    """
    single = scale.inverse
    double = ptx.fma_bf16x2(single, 0x40004000, MINUS_ZERO_PAIR)
    half = ptx.fma_bf16x2(single, 0x3F003F00, MINUS_ZERO_PAIR)
    codes = [_e2m1_pair(pair, double, single, half, v.capability) for pair in pairs]
    if len(codes) == 2:
        quad = ptx.multiply_add_u32(codes[1], 256, codes[0])
        return [ptx.multiply_add_u32(quad >> 16, 16, quad & 0xFFFF) - (CODE_ONE + 16 * (CODE_ONE + (CODE_ONE >> 8)))]
    words = []
    for i in range(0, len(codes), 4):
        # Dims 0 and 2 of four land in the low half of a quad, a byte each, dims 1 and 3 in the high half.
        first, second = (ptx.multiply_add_u32(codes[j + 1], 256, codes[j]) for j in (i, i + 2))
        even, odd = ptx.permute(first, second, 0x5410), ptx.permute(first, second, 0x7632)
        words.append(ptx.multiply_add_u32(odd, 16, even) - QUAD_OFFSETS)
    return words


def _e2m1_pair(pair: Uint32, double: Uint32, single: Uint32, half: Uint32, capability: int) -> Uint32:
    """Two codes, sign included, each above 128.0 in its bf16 half: CODE_ONE + code."""
    magnitudes = pair & MAGNITUDE_PAIR
    below_two = ptx.fma_bf16x2(magnitudes, double, 0x43004300)
    below_four = ptx.fma_bf16x2(magnitudes, single, 0x43024302)
    above = ptx.fma_bf16x2(magnitudes, half, 0x43044304)
    code = ptx.min_magnitude_x2(ptx.min_magnitude_x2(below_two, below_four, capability), above, capability)
    return code | ((pair >> 12) & SIGN_OF_CODE_PAIR)
