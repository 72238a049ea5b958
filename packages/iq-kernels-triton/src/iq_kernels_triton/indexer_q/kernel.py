"""The two indexer-Q kernels: which rows a program takes, what is loaded of them, and what becomes of padding.

A row is one head of one token. One program takes ROWS rows that follow each other in memory order of the outputs, head
after head and token after token: a part of one token's heads where H is a multiple of ROWS, else heads of several
tokens, each row then with a position and angles of its own.

A row of D dims is held as four quarters, four [ROWS, D/4] tiles: what pairs dims far apart (NeoX rotary pairs, the two
last Hadamard strides) then works between registers of one thread, and a lane holds neighbouring dims of each quarter,
so loads and stores are wide. The pass-through quarters of a row that is rotated in part cost no rotation.

Arithmetic is that of contract 1: one rounding per operation. The launcher compiles with `enable_fp_fusion=False`, so no
multiplication and addition contract. There is no inline assembly but the two instructions of programmatic dependent
launch, which USE_PDL switches.
"""

# The bodies are in Triton's language, which mypy cannot read.
# mypy: ignore-errors

import triton
import triton.language as tl

from .encode import MX_BLOCK
from .quantize import pad_fp8, pad_mxfp4, quantize_fp8, quantize_mxfp4
from .rotate import load_row


@triton.jit
def indexer_q_fp8_kernel(
    positions_ptr,
    q_ptr,
    cache_ptr,
    weights_ptr,
    codes_ptr,
    weights_out_ptr,
    combined_scale,
    num_tokens,
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
    ROWS: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    WORDS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """FP8 codes of ROWS rows, and their weights with the row scale folded in."""
    _wait_for_previous_kernel(USE_PDL)
    token, head, in_range = _place(num_tokens, H, ROWS)
    position = tl.load(positions_ptr + token * positions_stride).to(tl.int64)
    weight = tl.load(weights_ptr + token * weights_token_stride + head * weights_head_stride, mask=in_range, other=0.0)
    row = load_row(
        q_ptr + token * q_token_stride + head * q_head_stride, position, cache_ptr, num_positions, cache_stride,
        D, R, ROPE_START, NEOX, WORDS,
    )  # fmt: skip
    weights_out = weights_out_ptr + token * H + head
    codes = codes_ptr + token * (H * D) + head * D
    # No load moves past a barrier and no arithmetic before a branch, so all loads are on their way before any is
    # waited for.
    tl.debug_barrier()
    if H % ROWS == 0:
        if position < 0:
            pad_fp8(codes, weights_out, in_range, D)
        else:
            quantize_fp8(
                row, weight, combined_scale, codes, weights_out, in_range,
                D, R, ROPE_START, NEOX, HADAMARD, NATIVE_FLOAT, NATIVE_FP8, WORDS,
            )  # fmt: skip
    elif num_tokens > 0:  # always: it stands for the branch
        pad_fp8(codes, weights_out, in_range & (position < 0), D)
        quantize_fp8(
            row, weight, combined_scale, codes, weights_out, in_range & (position >= 0),
            D, R, ROPE_START, NEOX, HADAMARD, NATIVE_FLOAT, NATIVE_FP8, WORDS,
        )  # fmt: skip


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
    num_tokens,
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
    ROWS: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr,
    WORDS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Packed E2M1 codes and e8m0 block scales of ROWS rows, and their weights."""
    _wait_for_previous_kernel(USE_PDL)
    token, head, in_range = _place(num_tokens, H, ROWS)
    position = tl.load(positions_ptr + token * positions_stride).to(tl.int64)
    weight = tl.load(weights_ptr + token * weights_token_stride + head * weights_head_stride, mask=in_range, other=0.0)
    row = load_row(
        q_ptr + token * q_token_stride + head * q_head_stride, position, cache_ptr, num_positions, cache_stride,
        D, R, ROPE_START, NEOX, WORDS,
    )  # fmt: skip
    weights_out = weights_out_ptr + token * H + head
    codes = codes_ptr + token * (H * (D // 2)) + head * (D // 2)
    scales = scales_ptr + token * (H * (D // MX_BLOCK)) + head * (D // MX_BLOCK)
    tl.debug_barrier()  # as above
    if H % ROWS == 0:
        if position < 0:
            pad_mxfp4(codes, scales, weights_out, in_range, D)
        else:
            quantize_mxfp4(
                row, weight, combined_scale, codes, scales, weights_out, in_range,
                D, R, ROPE_START, NEOX, HADAMARD, NATIVE_FLOAT, WORDS,
            )  # fmt: skip
    elif num_tokens > 0:  # as above
        pad_mxfp4(codes, scales, weights_out, in_range & (position < 0), D)
        quantize_mxfp4(
            row, weight, combined_scale, codes, scales, weights_out, in_range & (position >= 0),
            D, R, ROPE_START, NEOX, HADAMARD, NATIVE_FLOAT, WORDS,
        )  # fmt: skip


@triton.jit
def _wait_for_previous_kernel(USE_PDL: tl.constexpr):
    # Dependents first: they may start to launch at once, and wait in turn before they read what this kernel writes.
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _place(num_tokens, H: tl.constexpr, ROWS: tl.constexpr):
    """Return the token of each row (64 bits: strides may reach 2**30 and more), its head, and whether it exists.

    The token is a scalar where one token has all the rows. Rows past the last token read that token again.
    """
    program = tl.program_id(0)
    if H % ROWS == 0:
        programs_per_token: tl.constexpr = H // ROWS
        token = (program // programs_per_token).to(tl.int64)
        head = (program % programs_per_token) * ROWS + tl.arange(0, ROWS)
        return token, head, head < H
    else:
        first = program.to(tl.int64) * ROWS
        row = (first % H).to(tl.int32) + tl.arange(0, ROWS)  # counted from head 0 of the first row's token
        token = first // H + row // H
        return tl.minimum(token, num_tokens - 1), row % H, token < num_tokens
