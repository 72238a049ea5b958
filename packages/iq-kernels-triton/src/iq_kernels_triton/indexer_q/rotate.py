"""Device code from memory to the values that are quantized: load, rotate, transform (contract, steps 1 to 3)."""

# ruff: noqa: N803, N806 - constants of a Triton kernel are upper case
# The bodies are in Triton's language, which mypy cannot read.
# mypy: ignore-errors

import triton
import triton.language as tl

from .hadamard import hadamard
from .numeric import round_bf16, widen


@triton.jit
def transformed_row(
    q_ptr, heads, position, cache_ptr, num_positions, q_head_stride, cache_stride,
    H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr, NEOX: tl.constexpr,
    HADAMARD: tl.constexpr, BLOCK_HEADS: tl.constexpr, NATIVE_FLOAT: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Steps 1 to 3 of the contract: four [BLOCK_HEADS, D/4] float32 tiles that hold bf16 values."""
    Q: tl.constexpr = D // 4
    rows = q_ptr + heads * q_head_stride
    x0 = _load_quarter(rows, heads, 0 * Q, H, Q, BLOCK_HEADS, WORDS)
    x1 = _load_quarter(rows, heads, 1 * Q, H, Q, BLOCK_HEADS, WORDS)
    x2 = _load_quarter(rows, heads, 2 * Q, H, Q, BLOCK_HEADS, WORDS)
    x3 = _load_quarter(rows, heads, 3 * Q, H, Q, BLOCK_HEADS, WORDS)
    cache = cache_ptr + position * cache_stride
    if NEOX and R == D:
        x0, x2 = _rotate_quarters(x0, x2, cache, 0 * Q, position, num_positions, Q, R, NATIVE_FLOAT)
        x1, x3 = _rotate_quarters(x1, x3, cache, 1 * Q, position, num_positions, Q, R, NATIVE_FLOAT)
    elif NEOX and R == 2 * Q and ROPE_START == 0:
        x0, x1 = _rotate_quarters(x0, x1, cache, 0, position, num_positions, Q, R, NATIVE_FLOAT)
    elif NEOX and R == 2 * Q:
        x2, x3 = _rotate_quarters(x2, x3, cache, 0, position, num_positions, Q, R, NATIVE_FLOAT)
    elif NEOX:
        x0 = _rotate_neox(
            x0, rows, heads, cache, 0 * Q, position, num_positions, H, Q, R, ROPE_START, BLOCK_HEADS, NATIVE_FLOAT
        )
        x1 = _rotate_neox(
            x1, rows, heads, cache, 1 * Q, position, num_positions, H, Q, R, ROPE_START, BLOCK_HEADS, NATIVE_FLOAT
        )
        x2 = _rotate_neox(
            x2, rows, heads, cache, 2 * Q, position, num_positions, H, Q, R, ROPE_START, BLOCK_HEADS, NATIVE_FLOAT
        )
        x3 = _rotate_neox(
            x3, rows, heads, cache, 3 * Q, position, num_positions, H, Q, R, ROPE_START, BLOCK_HEADS, NATIVE_FLOAT
        )
    else:
        x0 = _rotate_interleaved(
            x0, cache, 0 * Q - ROPE_START, position, num_positions, Q, R, BLOCK_HEADS, NATIVE_FLOAT
        )
        x1 = _rotate_interleaved(
            x1, cache, 1 * Q - ROPE_START, position, num_positions, Q, R, BLOCK_HEADS, NATIVE_FLOAT
        )
        x2 = _rotate_interleaved(
            x2, cache, 2 * Q - ROPE_START, position, num_positions, Q, R, BLOCK_HEADS, NATIVE_FLOAT
        )
        x3 = _rotate_interleaved(
            x3, cache, 3 * Q - ROPE_START, position, num_positions, Q, R, BLOCK_HEADS, NATIVE_FLOAT
        )
    if HADAMARD:
        x0, x1, x2, x3 = hadamard(x0, x1, x2, x3, D, BLOCK_HEADS, NATIVE_FLOAT)
    return x0, x1, x2, x3


@triton.jit
def _load_quarter(
    rows, heads, first_dim: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Load a quarter as float32: as 32-bit words of two bf16, which widen by one instruction a value, or one by one."""
    if WORDS:
        words = rows.to(tl.pointer_type(tl.int32)) + first_dim // 2
        words = _load_rows(words, heads, tl.arange(0, Q // 2), H, BLOCK_HEADS)
        even = (words << 16).to(tl.float32, bitcast=True)
        odd = (words & -0x10000).to(tl.float32, bitcast=True)
        return tl.reshape(tl.join(even, odd), [BLOCK_HEADS, Q])
    else:
        return widen(_load_rows(rows, heads, first_dim + tl.arange(0, Q), H, BLOCK_HEADS))


@triton.jit
def _load_rows(rows, heads, dims, H: tl.constexpr, BLOCK_HEADS: tl.constexpr):
    pointers = rows[:, None] + dims[None, :]
    if H % BLOCK_HEADS == 0:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(heads < H)[:, None], other=0)


@triton.jit
def _load_angles(cache, pair, wanted, position, num_positions, R: tl.constexpr):
    """Cosines and sines of the given pairs; NaN where they are not wanted or the position is outside the cache."""
    positions = tl.broadcast_to(position, [pair.shape[0]])
    mask = (positions >= 0) & (positions < num_positions)
    if wanted is not None:
        mask = mask & wanted
    cos = widen(tl.load(cache + pair, mask=mask, other=float("nan")))
    sin = widen(tl.load(cache + R // 2 + pair, mask=mask, other=float("nan")))
    return cos[None, :], sin[None, :]


@triton.jit
def _rotate_quarters(
    a, b, cache, first_pair: tl.constexpr, position, num_positions, Q: tl.constexpr, R: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr,
):  # fmt: skip
    """NeoX pairs that lie whole quarters apart: rotate one quarter against another."""
    cos, sin = _load_angles(cache, first_pair + tl.arange(0, Q), None, position, num_positions, R)
    return round_bf16(a * cos - b * sin, NATIVE_FLOAT), round_bf16(b * cos + a * sin, NATIVE_FLOAT)


@triton.jit
def _rotate_neox(
    x, rows, heads, cache, first_dim: tl.constexpr, position, num_positions, H: tl.constexpr, Q: tl.constexpr,
    R: tl.constexpr, ROPE_START: tl.constexpr, BLOCK_HEADS: tl.constexpr, NATIVE_FLOAT: tl.constexpr,
):  # fmt: skip
    """NeoX pairs at any distance: read each dim's partner again, from L1."""
    rotary: tl.constexpr = first_dim - ROPE_START  # rotary index of the quarter's first dim
    if rotary + Q <= 0 or rotary >= R:
        return x
    index = rotary + tl.arange(0, Q)
    is_rotary = (index >= 0) & (index < R)
    is_first = index < R // 2
    partner = tl.where(is_rotary, tl.where(is_first, index + R // 2, index - R // 2), 0)
    other = widen(_load_rows(rows, heads, ROPE_START + partner, H, BLOCK_HEADS))
    pair = tl.where(is_first, index, index - R // 2)
    cos, sin = _load_angles(cache, pair, is_rotary, position, num_positions, R)
    product = x * cos
    rotated = tl.where(is_first[None, :], product - other * sin, product + other * sin)
    return tl.where(is_rotary[None, :], round_bf16(rotated, NATIVE_FLOAT), x)


@triton.jit
def _rotate_interleaved(
    x, cache, rotary: tl.constexpr, position, num_positions, Q: tl.constexpr, R: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, NATIVE_FLOAT: tl.constexpr,
):  # fmt: skip
    """Pairs of neighbouring dims; `rotary` is the rotary index of the quarter's first dim, below 0 before the part."""
    if rotary + Q <= 0 or rotary >= R:
        return x
    pair = rotary // 2 + tl.arange(0, Q // 2)
    is_rotary = (pair >= 0) & (pair < R // 2)
    whole: tl.constexpr = rotary >= 0 and rotary + Q <= R
    cos, sin = _load_angles(cache, pair, None if whole else is_rotary, position, num_positions, R)
    a, b = tl.split(tl.reshape(x, [BLOCK_HEADS, Q // 2, 2]))
    rotated_a = a * cos - b * sin
    rotated_b = b * cos + a * sin
    if not whole:
        rotated_a = tl.where(is_rotary[None, :], rotated_a, a)
        rotated_b = tl.where(is_rotary[None, :], rotated_b, b)
    # Dims that pass hold bf16 values already, which the rounding leaves alone.
    return round_bf16(tl.reshape(tl.join(rotated_a, rotated_b), [BLOCK_HEADS, Q]), NATIVE_FLOAT)
