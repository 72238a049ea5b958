"""Device code of quantization: amax, scale exponent, e4m3 and E2M1 codes, and their stores."""

# ruff: noqa: N803, N806 - constants of a Triton kernel are upper case
# The bodies are in Triton's language, which mypy cannot read.
# mypy: ignore-errors

import triton
import triton.language as tl

from .numeric import FP32_INF_BITS

FP8_NAN = tl.constexpr(0x7F)
MXFP4_FLOOR = tl.constexpr(6 * 2.0**-126)
MXFP4_RECIPROCAL = tl.constexpr(1 / 6)  # 6 is the largest E2M1 value
E8M0_NAN = tl.constexpr(0xFF)
MX_BLOCK = tl.constexpr(32)
# Adding 2**23 to a small positive float32 rounds it to an integer, nearest even, and leaves that in the low bits.
ROUND_TO_INTEGER = tl.constexpr(2.0**23)


@triton.jit
def magnitude(x, NATIVE_FLOAT: tl.constexpr):
    """Return |x|, as float32 where the hardware has a maximum that keeps NaN, else as int32 bits.

    As integers Inf and NaN are the largest magnitudes of all, so that either way the maximum finds them.
    """
    if NATIVE_FLOAT:
        return tl.abs(x)
    else:
        return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def larger(a, b):
    """Return the larger of two magnitudes, NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def amax_bits(magnitude, axis: tl.constexpr, NATIVE_FLOAT: tl.constexpr):
    """Bits of the largest magnitude along `axis`, as int32."""
    if NATIVE_FLOAT:
        return tl.reduce(magnitude, axis, larger).to(tl.int32, bitcast=True)
    else:
        return tl.max(magnitude, axis)


@triton.jit
def scale_exponent(amax_bits, FLOOR: tl.constexpr, RECIPROCAL: tl.constexpr):
    """Step 5 of the contract: the biased exponent of the power of two at or above max(amax, FLOOR) * RECIPROCAL."""
    ratio = tl.maximum(amax_bits.to(tl.float32, bitcast=True), FLOOR) * RECIPROCAL
    return (ratio.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23


@triton.jit
def power_of_two(biased_exponent):
    """Return the float32 2**(biased_exponent - 127)."""
    return (biased_exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def store_zeros(rows, COUNT: tl.constexpr, in_range):
    """Store COUNT zero bytes in each row."""
    pointers = rows[:, None] + tl.arange(0, COUNT)[None, :]
    tl.store(pointers, tl.zeros(pointers.shape, tl.uint8), mask=in_range[:, None])


@triton.jit
def store_fp8_quarter(
    rows, first_dim: tl.constexpr, values, poisoned, in_range, NATIVE_FP8: tl.constexpr, WORDS: tl.constexpr
):
    """Store a quarter's e4m3fn codes. Poisoned rows are stored apart: what they hold never matters."""
    pointers = rows[:, None] + (first_dim + tl.arange(0, values.shape[1]))[None, :]
    if WORDS:
        # A lane loaded 8 dims, 16 bytes. Claiming no more alignment than their 8 codes need keeps them in that lane.
        pointers = tl.multiple_of(pointers, [8, 8])
    codes = values.to(tl.float8e4nv).to(tl.uint8, bitcast=True) if NATIVE_FP8 else _encode_e4m3(values)
    tl.store(pointers, codes, mask=(in_range & ~poisoned)[:, None])
    tl.store(pointers, tl.full(codes.shape, FP8_NAN, tl.uint8), mask=(in_range & poisoned)[:, None])


@triton.jit
def _encode_e4m3(x):
    """Encode float32 of magnitude up to 448 as e4m3fn bytes, nearest even, in integer arithmetic."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Normals: keep 3 of 23 mantissa bits and move the exponent's bias from 127 to 7.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2**-6 the codes count steps of 2**-9, the unit in the last place of 2**14.
    shifted = tl.abs(x) + 16384.0
    subnormal = shifted.to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0x3C800000, subnormal, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def blocks(x, D: tl.constexpr):
    """A quarter [heads, D/4] as [heads, blocks, up to 32 dims]."""
    BLOCKS: tl.constexpr = D // 4 // MX_BLOCK if D > 4 * MX_BLOCK else 1
    return tl.reshape(x, [x.shape[0], BLOCKS, D // 4 // BLOCKS])


@triton.jit
def store_fp4_quarter(rows, first_byte: tl.constexpr, x, amax_bits, in_range, WORDS: tl.constexpr):
    """Store a quarter's codes as 32-bit words of eight nibbles, or byte by byte where the output is not aligned."""
    HEADS: tl.constexpr = x.shape[0]
    BLOCKS: tl.constexpr = x.shape[1]
    DIMS: tl.constexpr = x.shape[2]
    inverse = power_of_two(254 - scale_exponent(amax_bits, MXFP4_FLOOR, MXFP4_RECIPROCAL))
    poisoned = amax_bits >= FP32_INF_BITS
    codes = tl.reshape(_round_e2m1(x, inverse[:, :, None]), [HEADS, BLOCKS, DIMS // 2, 2])
    signs = tl.reshape(x.to(tl.uint32, bitcast=True), [HEADS, BLOCKS, DIMS // 2, 2])
    if WORDS:
        COUNT: tl.constexpr = DIMS // 8
        words = _pack8(codes, signs, HEADS, BLOCKS, COUNT)
        pointers = (rows + first_byte).to(tl.pointer_type(tl.int32))[:, None, None]
        # A lane holds one word of each block. Claiming no more alignment keeps the words in the lanes that made them.
        pointers = tl.multiple_of(pointers + _block_offsets(BLOCKS, COUNT), [4, 4, 4])
    else:
        low, high = tl.split((codes & 7) | ((signs >> 28) & 8).to(tl.int32, bitcast=True))
        words = (low | (high << 4)).to(tl.uint8)
        pointers = (rows + first_byte)[:, None, None] + _block_offsets(BLOCKS, DIMS // 2)
    tl.store(pointers, tl.where(poisoned[:, :, None], 0, words), mask=in_range[:, None, None])


@triton.jit
def _block_offsets(BLOCKS: tl.constexpr, COUNT: tl.constexpr):
    return (tl.arange(0, BLOCKS)[:, None] * COUNT + tl.arange(0, COUNT)[None, :])[None, :, :]


@triton.jit
def _round_e2m1(x, inverse):
    """Round |x| * inverse, of magnitude up to 6, to E2M1, nearest even: as the int32 bits of 2**23 + code.

    The codes' values are 2y up to 2, y + 2 up to 4 and y/2 + 4 up to 6, each the smallest of the three in its range; so
    the code is the smallest of the three rounded to an integer. The products by powers of two are exact, so the fused
    additions round once, as separate ones would.
    """
    doubled = tl.abs(x) * (inverse * 2.0)
    low = (doubled + ROUND_TO_INTEGER).to(tl.int32, bitcast=True)
    middle = tl.fma(doubled, 0.5, ROUND_TO_INTEGER + 2.0).to(tl.int32, bitcast=True)
    high = tl.fma(doubled, 0.25, ROUND_TO_INTEGER + 4.0).to(tl.int32, bitcast=True)
    return tl.minimum(tl.minimum(low, middle), high)


@triton.jit
def _pack8(codes, signs, HEADS: tl.constexpr, BLOCKS: tl.constexpr, COUNT: tl.constexpr):
    """Pack eight codes and the signs of eight float32 words into one 32-bit word, dim 0 in the lowest nibble."""
    c0, c1, c2, c3, c4, c5, c6, c7 = _split8(codes, HEADS, BLOCKS, COUNT)
    s0, s1, s2, s3, s4, s5, s6, s7 = _split8(signs, HEADS, BLOCKS, COUNT)
    word = (((((((c7 << 4) + c6 << 4) + c5 << 4) + c4 << 4) + c3 << 4) + c2 << 4) + c1 << 4) + c0
    # Each step shifts four leading bits in, the sign and three that the mask drops: one funnel shift on a GPU.
    sign = s7 >> 28
    sign = (sign << 4) | (s6 >> 28)
    sign = (sign << 4) | (s5 >> 28)
    sign = (sign << 4) | (s4 >> 28)
    sign = (sign << 4) | (s3 >> 28)
    sign = (sign << 4) | (s2 >> 28)
    sign = (sign << 4) | (s1 >> 28)
    sign = (sign << 4) | (s0 >> 28)
    # The sum holds, modulo 2**32, the bits of 2**23 that stand above each code: 0x4B000000 * (1 + 16 + 256 + ...).
    return (word - (0xFB000000 - (1 << 32))) | (sign & 0x88888888).to(tl.int32, bitcast=True)


@triton.jit
def _split8(x, HEADS: tl.constexpr, BLOCKS: tl.constexpr, COUNT: tl.constexpr):
    even, odd = tl.split(x)
    x04, x26 = tl.split(tl.reshape(even, [HEADS, BLOCKS, 2 * COUNT, 2]))
    x15, x37 = tl.split(tl.reshape(odd, [HEADS, BLOCKS, 2 * COUNT, 2]))
    x0, x4 = tl.split(tl.reshape(x04, [HEADS, BLOCKS, COUNT, 2]))
    x2, x6 = tl.split(tl.reshape(x26, [HEADS, BLOCKS, COUNT, 2]))
    x1, x5 = tl.split(tl.reshape(x15, [HEADS, BLOCKS, COUNT, 2]))
    x3, x7 = tl.split(tl.reshape(x37, [HEADS, BLOCKS, COUNT, 2]))
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def scale_byte(amax_bits):
    """Return the e8m0 byte of each block [heads, blocks], as int32."""
    exponent = scale_exponent(amax_bits, MXFP4_FLOOR, MXFP4_RECIPROCAL)
    return tl.where(amax_bits >= FP32_INF_BITS, E8M0_NAN, exponent)


@triton.jit
def store_scales(rows, first_block: tl.constexpr, amax_bits, in_range):
    """Store the e8m0 bytes of a quarter's blocks."""
    BLOCKS: tl.constexpr = amax_bits.shape[1]
    pointers = rows[:, None] + (tl.arange(0, BLOCKS) + first_block)[None, :]
    tl.store(pointers, scale_byte(amax_bits).to(tl.uint8), mask=in_range[:, None])
