"""Device code from memory to the values that are quantized: load, rotate, transform (contract, steps 1 to 3)."""

# ruff: noqa: N803, N806 - constants of a Triton kernel are upper case
# The bodies are in Triton's language, which mypy cannot read.
# mypy: ignore-errors

import triton
import triton.language as tl

from .angles import load_angles
from .hadamard import hadamard
from .numeric import round_bf16, unpack, widen


@triton.jit
def load_row(
    rows, position, cache_ptr, num_positions, cache_stride,
    D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr, NEOX: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Issue every load of the rows: four quarters of q, of the NeoX partners if they are read apart, of the angles."""
    Q: tl.constexpr = D // 4
    x0 = _load_quarter(rows, 0 * Q, Q, WORDS)
    x1 = _load_quarter(rows, 1 * Q, Q, WORDS)
    x2 = _load_quarter(rows, 2 * Q, Q, WORDS)
    x3 = _load_quarter(rows, 3 * Q, Q, WORDS)
    p0 = _load_partners(rows, 0 * Q - ROPE_START, D, R, ROPE_START, NEOX)
    p1 = _load_partners(rows, 1 * Q - ROPE_START, D, R, ROPE_START, NEOX)
    p2 = _load_partners(rows, 2 * Q - ROPE_START, D, R, ROPE_START, NEOX)
    p3 = _load_partners(rows, 3 * Q - ROPE_START, D, R, ROPE_START, NEOX)
    cache = cache_ptr + position * cache_stride
    c0, s0 = load_angles(cache, position, num_positions, 0 * Q - ROPE_START, Q, R, NEOX, WORDS)
    c1, s1 = load_angles(cache, position, num_positions, 1 * Q - ROPE_START, Q, R, NEOX, WORDS)
    c2, s2 = load_angles(cache, position, num_positions, 2 * Q - ROPE_START, Q, R, NEOX, WORDS)
    c3, s3 = load_angles(cache, position, num_positions, 3 * Q - ROPE_START, Q, R, NEOX, WORDS)
    return x0, x1, x2, x3, p0, p1, p2, p3, c0, c1, c2, c3, s0, s1, s2, s3


@triton.jit
def transform_row(
    row, D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr, NEOX: tl.constexpr, HADAMARD: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Steps 1 to 3 of the contract on what `load_row` gave: four [ROWS, D/4] float32 tiles of bf16 values."""
    Q: tl.constexpr = D // 4
    x0, x1, x2, x3, p0, p1, p2, p3, c0, c1, c2, c3, s0, s1, s2, s3 = row
    x0 = unpack(x0)
    x1 = unpack(x1)
    x2 = unpack(x2)
    x3 = unpack(x3)
    if not NEOX:
        x0 = _rotate_interleaved(x0, c0, s0, 0 * Q - ROPE_START, Q, R, NATIVE_FLOAT)
        x1 = _rotate_interleaved(x1, c1, s1, 1 * Q - ROPE_START, Q, R, NATIVE_FLOAT)
        x2 = _rotate_interleaved(x2, c2, s2, 2 * Q - ROPE_START, Q, R, NATIVE_FLOAT)
        x3 = _rotate_interleaved(x3, c3, s3, 3 * Q - ROPE_START, Q, R, NATIVE_FLOAT)
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
        x0, x1, x2, x3 = hadamard(x0, x1, x2, x3, D, NATIVE_FLOAT)
    return x0, x1, x2, x3


@triton.jit
def _load_quarter(rows, first_dim: tl.constexpr, Q: tl.constexpr, WORDS: tl.constexpr):
    """Load a quarter as 32-bit words of two bf16, which widen by one instruction a value, or as bf16."""
    if WORDS:
        words = rows.to(tl.pointer_type(tl.int32)) + first_dim // 2
        return tl.load(words[:, None] + tl.arange(0, Q // 2)[None, :])
    else:
        return tl.load(rows[:, None] + (first_dim + tl.arange(0, Q))[None, :])


@triton.jit
def _load_partners(
    rows, rotary: tl.constexpr, D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr, NEOX: tl.constexpr
):
    """Load the NeoX partner of each dim of a quarter again, from L1, unless it is a quarter of its own.

    `rotary` is the rotary index of the quarter's first dim.
    """
    Q: tl.constexpr = D // 4
    if NEOX and R != D and R != 2 * Q and rotary + Q > 0 and rotary < R:
        index = rotary + tl.arange(0, Q)
        partner = tl.where(index < R // 2, index + R // 2, index - R // 2)
        partner = tl.where((index >= 0) & (index < R), partner, 0)
        return tl.load(rows[:, None] + (ROPE_START + partner)[None, :])
    else:
        return rows  # read by nobody


@triton.jit
def _rotate_quarters(a, b, cos, sin, NATIVE_FLOAT: tl.constexpr):
    cos, sin = unpack(cos), unpack(sin)
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
    x, cos, sin, rotary: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, NATIVE_FLOAT: tl.constexpr
):
    if rotary + Q > 0 and rotary < R:
        cos, sin = widen(cos), widen(sin)
        a, b = tl.split(tl.reshape(x, [x.shape[0], Q // 2, 2]))
        rotated_a = a * cos - b * sin
        rotated_b = b * cos + a * sin
        if rotary < 0 or rotary + Q > R:
            pair = (rotary // 2 + tl.arange(0, Q // 2))[None, :]
            is_rotary = (pair >= 0) & (pair < R // 2)
            rotated_a = tl.where(is_rotary, rotated_a, a)
            rotated_b = tl.where(is_rotary, rotated_b, b)
        # Dims that pass hold bf16 values already, which the rounding leaves alone.
        return round_bf16(tl.reshape(tl.join(rotated_a, rotated_b), [x.shape[0], Q]), NATIVE_FLOAT)
    else:
        return x
