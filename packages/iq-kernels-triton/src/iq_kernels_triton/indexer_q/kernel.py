"""Device code of the two indexer-Q kernels: rotate, round, transform, find the scale, encode, store.

One program takes BLOCK_HEADS heads of one token. A row of D dims is held as four quarters, four [BLOCK_HEADS, D/4]
tiles: what pairs dims far apart (NeoX rotary pairs, the two last Hadamard strides) then works between registers of one
thread, and a lane holds neighbouring dims of each quarter, so loads and stores are wide. The pass-through quarters of
a row that is rotated in part cost no rotation.

Arithmetic is that of contract 1: one rounding per operation. The launcher compiles with `enable_fp_fusion=False`, so no
multiplication and addition contract. There is no inline assembly but the two instructions of programmatic dependent
launch, which USE_PDL switches.
"""

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
from .rotate import load_row, transform_row

FP8_FLOOR = tl.constexpr(1e-4)
FP8_RECIPROCAL = tl.constexpr(1 / 448)  # 448 is the largest e4m3fn value


@triton.jit
def indexer_q_fp8_kernel(
    positions_ptr,
    q_ptr,
    cache_ptr,
    weights_ptr,
    codes_ptr,
    weights_out_ptr,
    combined_scale,
    num_positions,
    positions_stride,
    q_token_stride,
    q_head_stride,
    cache_stride,
    weights_token_stride,
    weights_head_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    ROPE_START: tl.constexpr,
    NEOX: tl.constexpr,
    HADAMARD: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    WORDS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """FP8 codes of BLOCK_HEADS rows of one token, and their weights with the row scale folded in."""
    _wait_for_previous_kernel(USE_PDL)
    token, heads = _place(H, BLOCK_HEADS)
    in_range = heads < H
    position = tl.load(positions_ptr + token * positions_stride).to(tl.int64)
    weight = tl.load(weights_ptr + token * weights_token_stride + heads * weights_head_stride, mask=in_range, other=0.0)
    row = load_row(
        q_ptr + token * q_token_stride, heads, position, cache_ptr, num_positions, q_head_stride, cache_stride,
        H, D, R, ROPE_START, NEOX, BLOCK_HEADS, WORDS,
    )  # fmt: skip
    weights_out = weights_out_ptr + token * H + heads
    codes = codes_ptr + token * (H * D) + heads * D
    # No load moves past a barrier and no arithmetic before a branch, so all loads are on their way before any is
    # waited for.
    tl.debug_barrier()
    if position < 0:
        store_zeros(codes, D, in_range)
        tl.store(weights_out, tl.zeros([BLOCK_HEADS], weights_out.dtype.element_ty), mask=in_range)
    else:
        x0, x1, x2, x3 = transform_row(row, D, R, ROPE_START, NEOX, HADAMARD, BLOCK_HEADS, NATIVE_FLOAT, WORDS)
        low = larger(magnitude(x0, NATIVE_FLOAT), magnitude(x1, NATIVE_FLOAT))
        high = larger(magnitude(x2, NATIVE_FLOAT), magnitude(x3, NATIVE_FLOAT))
        amax = amax_bits(larger(low, high), 1, NATIVE_FLOAT)
        poisoned = amax >= FP32_INF_BITS
        exponent = scale_exponent(amax, FP8_FLOOR, FP8_RECIPROCAL)
        inverse = power_of_two(254 - exponent)[:, None]
        store_fp8_quarter(codes, 0 * (D // 4), x0 * inverse, poisoned, in_range, NATIVE_FP8, WORDS)
        store_fp8_quarter(codes, 1 * (D // 4), x1 * inverse, poisoned, in_range, NATIVE_FP8, WORDS)
        store_fp8_quarter(codes, 2 * (D // 4), x2 * inverse, poisoned, in_range, NATIVE_FP8, WORDS)
        store_fp8_quarter(codes, 3 * (D // 4), x3 * inverse, poisoned, in_range, NATIVE_FP8, WORDS)
        scaled = widen(weight) * combined_scale * power_of_two(exponent)
        _store_weights(weights_out, tl.where(poisoned, float("nan"), scaled), in_range, NATIVE_FLOAT)


@triton.jit
def indexer_q_mxfp4_kernel(
    positions_ptr,
    q_ptr,
    cache_ptr,
    weights_ptr,
    codes_ptr,
    scales_ptr,
    weights_out_ptr,
    combined_scale,
    num_positions,
    positions_stride,
    q_token_stride,
    q_head_stride,
    cache_stride,
    weights_token_stride,
    weights_head_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    ROPE_START: tl.constexpr,
    NEOX: tl.constexpr,
    HADAMARD: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr,
    WORDS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Packed E2M1 codes and e8m0 block scales of BLOCK_HEADS rows of one token, and their weights."""
    _wait_for_previous_kernel(USE_PDL)
    token, heads = _place(H, BLOCK_HEADS)
    in_range = heads < H
    position = tl.load(positions_ptr + token * positions_stride).to(tl.int64)
    weight = tl.load(weights_ptr + token * weights_token_stride + heads * weights_head_stride, mask=in_range, other=0.0)
    row = load_row(
        q_ptr + token * q_token_stride, heads, position, cache_ptr, num_positions, q_head_stride, cache_stride,
        H, D, R, ROPE_START, NEOX, BLOCK_HEADS, WORDS,
    )  # fmt: skip
    weights_out = weights_out_ptr + token * H + heads
    codes = codes_ptr + token * (H * (D // 2)) + heads * (D // 2)
    scales = scales_ptr + token * (H * (D // MX_BLOCK)) + heads * (D // MX_BLOCK)
    tl.debug_barrier()  # as above
    if position < 0:
        store_zeros(codes, D // 2, in_range)
        store_zeros(scales, D // MX_BLOCK, in_range)
        tl.store(weights_out, tl.zeros([BLOCK_HEADS], weights_out.dtype.element_ty), mask=in_range)
    else:
        x0, x1, x2, x3 = transform_row(row, D, R, ROPE_START, NEOX, HADAMARD, BLOCK_HEADS, NATIVE_FLOAT, WORDS)
        # [BLOCK_HEADS, blocks, dims of a block]; a block of 32 that spans quarters has the same amax in each of them.
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
        store_fp4_quarter(codes, 0 * (D // 8), x0, m0, in_range, WORDS)
        store_fp4_quarter(codes, 1 * (D // 8), x1, m1, in_range, WORDS)
        store_fp4_quarter(codes, 2 * (D // 8), x2, m2, in_range, WORDS)
        store_fp4_quarter(codes, 3 * (D // 8), x3, m3, in_range, WORDS)
        if WORDS and D == 4 * MX_BLOCK:
            low, high = scale_byte(m0) | (scale_byte(m1) << 8), scale_byte(m2) | (scale_byte(m3) << 8)
            words = tl.reshape(low | (high << 16), [BLOCK_HEADS])
            tl.store(scales.to(tl.pointer_type(tl.int32)), words, mask=in_range)
        else:
            store_scales(scales, 0, m0, in_range)
            if D > MX_BLOCK:
                store_scales(scales, D // 2 // MX_BLOCK, m2, in_range)
            if D > 2 * MX_BLOCK:
                store_scales(scales, D // 4 // MX_BLOCK, m1, in_range)
                store_scales(scales, 3 * (D // 4) // MX_BLOCK, m3, in_range)
        _store_weights(weights_out, widen(weight) * combined_scale, in_range, NATIVE_FLOAT)


@triton.jit
def _wait_for_previous_kernel(USE_PDL: tl.constexpr):
    # Dependents first: they may start to launch at once, and wait in turn before they read what this kernel writes.
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _place(H: tl.constexpr, BLOCK_HEADS: tl.constexpr):
    """Return this program's token (64 bits: strides may reach 2**30 and more) and its heads."""
    programs_per_token: tl.constexpr = (H + BLOCK_HEADS - 1) // BLOCK_HEADS
    program = tl.program_id(0)
    token = (program // programs_per_token).to(tl.int64)
    return token, (program % programs_per_token) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)


@triton.jit
def _store_weights(pointers, weight, in_range, NATIVE_FLOAT: tl.constexpr):
    # After the rounding the conversion that the store makes is exact.
    if pointers.dtype.element_ty == tl.bfloat16:
        weight = round_bf16(weight, NATIVE_FLOAT)
    tl.store(pointers, weight.to(pointers.dtype.element_ty), mask=in_range)
