"""Device code from memory to the values that are quantized: load, rotate, transform (contract, steps 1 to 3)."""

# ruff: noqa: N803, N806 - constants of a Triton kernel are upper case
# The bodies are in Triton's language, which mypy cannot read.
# mypy: ignore-errors

import triton
import triton.language as tl

from .hadamard import hadamard
from .numeric import round_bf16, widen


@triton.jit
def load_row(
    q_ptr, heads, position, cache_ptr, num_positions, q_head_stride, cache_stride,
    H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr, NEOX: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Issue every load of the rows: four quarters of q, of the NeoX partners if they are read apart, of the angles."""
    Q: tl.constexpr = D // 4
    rows = q_ptr + heads * q_head_stride
    x0 = _load_quarter(rows, heads, 0 * Q, H, Q, BLOCK_HEADS, WORDS)
    x1 = _load_quarter(rows, heads, 1 * Q, H, Q, BLOCK_HEADS, WORDS)
    x2 = _load_quarter(rows, heads, 2 * Q, H, Q, BLOCK_HEADS, WORDS)
    x3 = _load_quarter(rows, heads, 3 * Q, H, Q, BLOCK_HEADS, WORDS)
    p0 = _load_partners(rows, heads, 0 * Q - ROPE_START, H, D, R, ROPE_START, NEOX, BLOCK_HEADS)
    p1 = _load_partners(rows, heads, 1 * Q - ROPE_START, H, D, R, ROPE_START, NEOX, BLOCK_HEADS)
    p2 = _load_partners(rows, heads, 2 * Q - ROPE_START, H, D, R, ROPE_START, NEOX, BLOCK_HEADS)
    p3 = _load_partners(rows, heads, 3 * Q - ROPE_START, H, D, R, ROPE_START, NEOX, BLOCK_HEADS)
    cache = cache_ptr + position * cache_stride
    c0, s0 = _load_angles(cache, 0 * Q - ROPE_START, position, num_positions, Q, R, NEOX)
    c1, s1 = _load_angles(cache, 1 * Q - ROPE_START, position, num_positions, Q, R, NEOX)
    c2, s2 = _load_angles(cache, 2 * Q - ROPE_START, position, num_positions, Q, R, NEOX)
    c3, s3 = _load_angles(cache, 3 * Q - ROPE_START, position, num_positions, Q, R, NEOX)
    return x0, x1, x2, x3, p0, p1, p2, p3, c0, c1, c2, c3, s0, s1, s2, s3


@triton.jit
def transform_row(
    row, D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr, NEOX: tl.constexpr, HADAMARD: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, NATIVE_FLOAT: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Steps 1 to 3 of the contract on what `load_row` gave: four [BLOCK_HEADS, D/4] float32 tiles of bf16 values."""
    Q: tl.constexpr = D // 4
    x0, x1, x2, x3, p0, p1, p2, p3, c0, c1, c2, c3, s0, s1, s2, s3 = row
    x0 = _widen_quarter(x0, BLOCK_HEADS, WORDS)
    x1 = _widen_quarter(x1, BLOCK_HEADS, WORDS)
    x2 = _widen_quarter(x2, BLOCK_HEADS, WORDS)
    x3 = _widen_quarter(x3, BLOCK_HEADS, WORDS)
    if not NEOX:
        x0 = _rotate_interleaved(x0, c0, s0, 0 * Q - ROPE_START, Q, R, BLOCK_HEADS, NATIVE_FLOAT)
        x1 = _rotate_interleaved(x1, c1, s1, 1 * Q - ROPE_START, Q, R, BLOCK_HEADS, NATIVE_FLOAT)
        x2 = _rotate_interleaved(x2, c2, s2, 2 * Q - ROPE_START, Q, R, BLOCK_HEADS, NATIVE_FLOAT)
        x3 = _rotate_interleaved(x3, c3, s3, 3 * Q - ROPE_START, Q, R, BLOCK_HEADS, NATIVE_FLOAT)
    elif R == D:
        x0, x2 = _rotate_quarters(x0, x2, c0, s0, NATIVE_FLOAT)
        x1, x3 = _rotate_quarters(x1, x3, c1, s1, NATIVE_FLOAT)
    elif R == 2 * Q and ROPE_START == 0:
        x0, x1 = _rotate_quarters(x0, x1, c0, s0, NATIVE_FLOAT)
    elif R == 2 * Q:
        x2, x3 = _rotate_quarters(x2, x3, c2, s2, NATIVE_FLOAT)
    else:
        x0 = _rotate_neox(x0, p0, c0, s0, 0 * Q - ROPE_START, Q, R, NATIVE_FLOAT)
        x1 = _rotate_neox(x1, p1, c1, s1, 1 * Q - ROPE_START, Q, R, NATIVE_FLOAT)
        x2 = _rotate_neox(x2, p2, c2, s2, 2 * Q - ROPE_START, Q, R, NATIVE_FLOAT)
        x3 = _rotate_neox(x3, p3, c3, s3, 3 * Q - ROPE_START, Q, R, NATIVE_FLOAT)
    if HADAMARD:
        x0, x1, x2, x3 = hadamard(x0, x1, x2, x3, D, BLOCK_HEADS, NATIVE_FLOAT)
    return x0, x1, x2, x3


@triton.jit
def _load_quarter(
    rows, heads, first_dim: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Load a quarter as 32-bit words of two bf16, which widen by one instruction a value, or as bf16."""
    if WORDS:
        words = rows.to(tl.pointer_type(tl.int32)) + first_dim // 2
        return _load_rows(words, heads, tl.arange(0, Q // 2), H, BLOCK_HEADS)
    else:
        return _load_rows(rows, heads, first_dim + tl.arange(0, Q), H, BLOCK_HEADS)


@triton.jit
def _load_rows(rows, heads, dims, H: tl.constexpr, BLOCK_HEADS: tl.constexpr):
    pointers = rows[:, None] + dims[None, :]
    if H % BLOCK_HEADS == 0:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(heads < H)[:, None], other=0)


@triton.jit
def _load_partners(
    rows, heads, rotary: tl.constexpr, H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr,
    NEOX: tl.constexpr, BLOCK_HEADS: tl.constexpr,
):  # fmt: skip
    """Load the NeoX partner of each dim of a quarter again, from L1, unless it is a quarter of its own.

    `rotary` is the rotary index of the quarter's first dim.
    """
    Q: tl.constexpr = D // 4
    if NEOX and R != D and R != 2 * Q and rotary + Q > 0 and rotary < R:
        index = rotary + tl.arange(0, Q)
        partner = tl.where(index < R // 2, index + R // 2, index - R // 2)
        partner = tl.where((index >= 0) & (index < R), partner, 0)
        return _load_rows(rows, heads, ROPE_START + partner, H, BLOCK_HEADS)
    else:
        return rows  # read by nobody


@triton.jit
def _load_angles(
    cache, rotary: tl.constexpr, position, num_positions, Q: tl.constexpr, R: tl.constexpr, NEOX: tl.constexpr
):
    """Cosines and sines of a quarter: [Q] in NeoX style, [Q/2] interleaved; nothing where no dim is rotary.

    They are NaN for dims that pass and for a position outside the cache. `rotary` may lie before the rotary part.
    """
    if rotary + Q > 0 and rotary < R:
        PAIRS: tl.constexpr = Q if NEOX else Q // 2
        if NEOX:
            index = rotary + tl.arange(0, PAIRS)
            pair = tl.where(index < R // 2, index, index - R // 2) if rotary + Q > R // 2 else index
        else:
            pair = rotary // 2 + tl.arange(0, PAIRS)
        positions = tl.broadcast_to(position, [PAIRS])
        mask = (positions >= 0) & (positions < num_positions)
        if rotary < 0 or rotary + Q > R:
            mask = mask & (pair >= 0) & (pair < R // 2)
        cos = tl.load(cache + pair, mask=mask, other=float("nan"))
        sin = tl.load(cache + R // 2 + pair, mask=mask, other=float("nan"))
        return cos[None, :], sin[None, :]
    else:
        return position, position  # read by nobody


@triton.jit
def _widen_quarter(x, BLOCK_HEADS: tl.constexpr, WORDS: tl.constexpr):
    if WORDS:
        even = (x << 16).to(tl.float32, bitcast=True)
        odd = (x & -0x10000).to(tl.float32, bitcast=True)
        return tl.reshape(tl.join(even, odd), [BLOCK_HEADS, 2 * x.shape[1]])
    else:
        return widen(x)


@triton.jit
def _rotate_quarters(a, b, cos, sin, NATIVE_FLOAT: tl.constexpr):
    cos, sin = widen(cos), widen(sin)
    return round_bf16(a * cos - b * sin, NATIVE_FLOAT), round_bf16(b * cos + a * sin, NATIVE_FLOAT)


@triton.jit
def _rotate_neox(
    x, partner, cos, sin, rotary: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, NATIVE_FLOAT: tl.constexpr
):
    if rotary + Q > 0 and rotary < R:
        index = (rotary + tl.arange(0, Q))[None, :]
        straight = x * widen(cos)
        crossed = widen(partner) * widen(sin)
        rotated = round_bf16(tl.where(index < R // 2, straight - crossed, straight + crossed), NATIVE_FLOAT)
        return tl.where((index >= 0) & (index < R), rotated, x)
    else:
        return x


@triton.jit
def _rotate_interleaved(
    x, cos, sin, rotary: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr,
):  # fmt: skip
    if rotary + Q > 0 and rotary < R:
        cos, sin = widen(cos), widen(sin)
        a, b = tl.split(tl.reshape(x, [BLOCK_HEADS, Q // 2, 2]))
        rotated_a = a * cos - b * sin
        rotated_b = b * cos + a * sin
        if rotary < 0 or rotary + Q > R:
            pair = (rotary // 2 + tl.arange(0, Q // 2))[None, :]
            is_rotary = (pair >= 0) & (pair < R // 2)
            rotated_a = tl.where(is_rotary, rotated_a, a)
            rotated_b = tl.where(is_rotary, rotated_b, b)
        # Dims that pass hold bf16 values already, which the rounding leaves alone.
        return round_bf16(tl.reshape(tl.join(rotated_a, rotated_b), [BLOCK_HEADS, Q]), NATIVE_FLOAT)
    else:
        return x
