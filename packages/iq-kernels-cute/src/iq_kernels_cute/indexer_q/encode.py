"""Device code of the encodings: bf16 pairs and a scale exponent to e4m3fn bytes or E2M1 nibbles (contract, step 5).

Multiplying a bf16 by 2**(127-e) is exact: the product stays below 512, and one that falls among the bf16 subnormals is
far below half of the smallest code. The integer and FMA forms serve targets without the conversion in hardware; a test
proves each over all bf16 values.
"""

from __future__ import annotations

from cutlass import Uint32

from . import ptx
from .config import Variant
from .scale import MAGNITUDE_PAIR, Scale

MINUS_ZERO_PAIR = 0x80008000
BOTH_HALVES = 0x00010001
FP8_NAN_WORD = 0x7F7F7F7F


def encode(v: Variant, pairs: list[Uint32], scale: Scale) -> list[Uint32]:
    """One vector's codes, packed into words; a vector of 4 gives one word whose lower half counts for MXFP4."""
    if v.op == "indexer_q_fp8":
        encode_four = _e4m3_hardware if v.hardware_e4m3 else _e4m3_packed
        factor = _power_of_two_pair(254 - scale.exponent)
        return [encode_four(pairs[i], pairs[i + 1], factor) for i in range(0, len(pairs), 2)]
    return _e2m1_hardware(pairs, scale) if v.hardware_e2m1 else _e2m1_packed(pairs, scale)


def _power_of_two_pair(biased_exponent: Uint32) -> Uint32:
    """2**(biased_exponent - 127) in both bf16 halves, for an exponent from 1 to 254."""
    return biased_exponent * (BOTH_HALVES << 7)


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
    """e4m3fn codes of two magnitudes, each in the low byte of a half: the middle one of subnormal rule, 8 and normal rule.

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
    factor = _power_of_two_pair(254 - scale.exponent)
    values = [value for pair in pairs for value in _scaled(pair, factor)]
    return [ptx.round_e2m1(values[i : i + 8]) for i in range(0, len(values), 8)]


def _e2m1_packed(pairs: list[Uint32], scale: Scale) -> list[Uint32]:
    """E2M1 codes by three FMAs: the code of y is the least of 2y, y + 2 and y/2 + 4, rounded to an even integer at a tie.

    Around 128 a bf16 counts in steps of one, so that each FMA rounds once, to that grid, and leaves the code in its low
    bits. y is magnitude * 2**(127-e); the factors 2**(128-e) ... 2**(126-e) go from 2**127 to the subnormal 2**-127.
    """
    double = _power_of_two_pair(255 - scale.exponent)
    single = _power_of_two_pair(254 - scale.exponent)
    half = ptx.max_u32(_power_of_two_pair(253 - scale.exponent), 0x00400040)  # 2**-127 where the exponent field ends
    quads = []
    for first, second in zip(pairs[::2], pairs[1::2], strict=True):
        codes = [_e2m1_magnitudes(pair & MAGNITUDE_PAIR, double, single, half) for pair in (first, second)]
        signs = (ptx.permute(first, second, 0x7531) >> 4) & 0x08080808
        nibbles = ptx.permute(codes[0], codes[1], 0x6420) | signs
        quads.append(nibbles | (nibbles >> 4))  # bytes 0 and 2 hold two codes each
    if len(quads) == 1:
        return [ptx.permute(quads[0], quads[0], 0x2020)]
    return [ptx.permute(low, high, 0x6420) for low, high in zip(quads[::2], quads[1::2], strict=True)]


def _e2m1_magnitudes(magnitudes: Uint32, double: Uint32, single: Uint32, half: Uint32) -> Uint32:
    below_one = ptx.fma_bf16x2(magnitudes, double, 0x43004300)  # 128 + 2y
    below_four = ptx.fma_bf16x2(magnitudes, single, 0x43024302)  # 130 + y
    above = ptx.fma_bf16x2(magnitudes, half, 0x43044304)  # 132 + y/2
    return ptx.min_bf16x2(ptx.min_bf16x2(below_one, below_four), above)
