"""Device code of what a program does with its rows: pad them, or transform, scale, encode and store them.

`mask` says which rows are stored at all. Pointers and weights are [rows].
"""

# ruff: noqa: N803 - constants of a Triton kernel are upper case
# The bodies are in Triton's language, which mypy cannot read.
# mypy: ignore-errors

import triton
import triton.language as tl

from .encode import (
    MX_BLOCK,
    amax_bits,
    blocks,
    larger,
    magnitude,
    power_of_two,
    scale_byte,
    scale_exponent,
    store_fp4_quarter,
    store_fp8_quarter,
    store_scales,
    store_zeros,
)
from .numeric import FP32_INF_BITS, round_bf16, widen
from .rotate import transform_row

FP8_FLOOR = tl.constexpr(1e-4)
FP8_RECIPROCAL = tl.constexpr(1 / 448)  # 448 is the largest e4m3fn value


@triton.jit
def pad_fp8(codes, weights_out, mask, D: tl.constexpr):
    """Zero rows, whatever q holds."""
    store_zeros(codes, D, mask)
    tl.store(weights_out, tl.zeros(weights_out.shape, weights_out.dtype.element_ty), mask=mask)


@triton.jit
def quantize_fp8(
    row, weight, combined_scale, codes, weights_out, mask,
    D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr, NEOX: tl.constexpr, HADAMARD: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr, NATIVE_FP8: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """FP8 codes of the rows that `load_row` gave, and their weights with the row scale folded in."""
    x0, x1, x2, x3 = transform_row(row, D, R, ROPE_START, NEOX, HADAMARD, NATIVE_FLOAT, WORDS)
    low = larger(magnitude(x0, NATIVE_FLOAT), magnitude(x1, NATIVE_FLOAT))
    high = larger(magnitude(x2, NATIVE_FLOAT), magnitude(x3, NATIVE_FLOAT))
    amax = amax_bits(larger(low, high), 1, NATIVE_FLOAT)
    poisoned = amax >= FP32_INF_BITS
    exponent = scale_exponent(amax, FP8_FLOOR, FP8_RECIPROCAL)
    inverse = power_of_two(254 - exponent)[:, None]
    store_fp8_quarter(codes, 0 * (D // 4), x0 * inverse, poisoned, mask, NATIVE_FP8, WORDS)
    store_fp8_quarter(codes, 1 * (D // 4), x1 * inverse, poisoned, mask, NATIVE_FP8, WORDS)
    store_fp8_quarter(codes, 2 * (D // 4), x2 * inverse, poisoned, mask, NATIVE_FP8, WORDS)
    store_fp8_quarter(codes, 3 * (D // 4), x3 * inverse, poisoned, mask, NATIVE_FP8, WORDS)
    scaled = widen(weight) * combined_scale * power_of_two(exponent)
    _store_weights(weights_out, tl.where(poisoned, float("nan"), scaled), mask, NATIVE_FLOAT)


@triton.jit
def pad_mxfp4(codes, scales, weights_out, mask, D: tl.constexpr):
    """Zero rows, whatever q holds."""
    store_zeros(codes, D // 2, mask)
    store_zeros(scales, D // MX_BLOCK, mask)
    tl.store(weights_out, tl.zeros(weights_out.shape, weights_out.dtype.element_ty), mask=mask)


@triton.jit
def quantize_mxfp4(
    row, weight, combined_scale, codes, scales, weights_out, mask,
    D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr, NEOX: tl.constexpr, HADAMARD: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Packed E2M1 codes and e8m0 block scales of the rows that `load_row` gave, and their weights."""
    x0, x1, x2, x3 = transform_row(row, D, R, ROPE_START, NEOX, HADAMARD, NATIVE_FLOAT, WORDS)
    # [rows, blocks, dims of a block]; a block of 32 that spans quarters has the same amax in each of them.
    x0, x1, x2, x3 = blocks(x0, D), blocks(x1, D), blocks(x2, D), blocks(x3, D)
    m0 = amax_bits(magnitude(x0, NATIVE_FLOAT), 2, NATIVE_FLOAT)
    m1 = amax_bits(magnitude(x1, NATIVE_FLOAT), 2, NATIVE_FLOAT)
    m2 = amax_bits(magnitude(x2, NATIVE_FLOAT), 2, NATIVE_FLOAT)
    m3 = amax_bits(magnitude(x3, NATIVE_FLOAT), 2, NATIVE_FLOAT)
    if D < 4 * MX_BLOCK:
        m0 = tl.maximum(m0, m1)
        m2 = tl.maximum(m2, m3)
        if D < 2 * MX_BLOCK:
            m0 = tl.maximum(m0, m2)
            m2 = m0
        m1 = m0
        m3 = m2
    store_fp4_quarter(codes, 0 * (D // 8), x0, m0, mask, WORDS)
    store_fp4_quarter(codes, 1 * (D // 8), x1, m1, mask, WORDS)
    store_fp4_quarter(codes, 2 * (D // 8), x2, m2, mask, WORDS)
    store_fp4_quarter(codes, 3 * (D // 8), x3, m3, mask, WORDS)
    if WORDS and D == 4 * MX_BLOCK:
        low, high = scale_byte(m0) | (scale_byte(m1) << 8), scale_byte(m2) | (scale_byte(m3) << 8)
        words = tl.reshape(low | (high << 16), [x0.shape[0]])
        tl.store(scales.to(tl.pointer_type(tl.int32)), words, mask=mask)
    else:
        store_scales(scales, 0, m0, mask)
        if D > MX_BLOCK:
            store_scales(scales, D // 2 // MX_BLOCK, m2, mask)
        if D > 2 * MX_BLOCK:
            store_scales(scales, D // 4 // MX_BLOCK, m1, mask)
            store_scales(scales, 3 * (D // 4) // MX_BLOCK, m3, mask)
    _store_weights(weights_out, widen(weight) * combined_scale, mask, NATIVE_FLOAT)


@triton.jit
def _store_weights(pointers, weight, mask, NATIVE_FLOAT: tl.constexpr):
    # After the rounding the conversion that the store makes is exact.
    if pointers.dtype.element_ty == tl.bfloat16:
        weight = round_bf16(weight, NATIVE_FLOAT)
    tl.store(pointers, weight.to(pointers.dtype.element_ty), mask=mask)
