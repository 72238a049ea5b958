"""Device code that loads the cosines and sines of a quarter of a row: once for a token, or once for each row."""

# ruff: noqa: N803, N806 - constants of a Triton kernel are upper case
# The bodies are in Triton's language, which mypy cannot read.
# mypy: ignore-errors

import triton
import triton.language as tl

from .numeric import BF16_NAN_PAIR, FP32_NAN_PAIR


@triton.jit
def load_angles(
    cache, position, num_positions, rotary: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, NEOX: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Return cosines and sines for the Q dims that start at rotary index `rotary`, which may be negative.

    `cache` points to the position's row of the cache, and both are scalars (one token) or hold one value a row. The
    results are [1 or rows, Q] in NeoX style and [1 or rows, Q/2] interleaved, whole or in words of two. They are NaN
    for dims that pass and for a position outside the cache.
    """
    if rotary + Q <= 0 or rotary >= R:
        return position, position  # no dim is rotary: read by nobody
    elif not position.type.is_block():
        pair = _pairs(rotary, Q, R, NEOX)
        inside = tl.broadcast_to(position, pair.shape)
        inside = (inside >= 0) & (inside < num_positions)
        cos, sin = _load_pairs(cache, pair, inside, rotary, Q, R)
        return cos[None, :], sin[None, :]
    elif NEOX and WORDS and R % (2 * Q) == 0:
        # Words of two, as q is loaded: a lane then has the angles of the very dims that it holds.
        inside = ((position >= 0) & (position < num_positions))[:, None]
        first: tl.constexpr = rotary % (R // 2)
        return _load_words(cache, first, Q, inside), _load_words(cache, first + R // 2, Q, inside)
    else:
        inside = ((position >= 0) & (position < num_positions))[:, None]
        cache = cache[:, None]
        if WORDS and not NEOX:
            # A lane holds four pairs. Claiming no more alignment than they need keeps bf16 angles in that lane.
            BYTES: tl.constexpr = 4 * cache.dtype.element_ty.primitive_bitwidth // 8
            cache = tl.multiple_of(cache, [BYTES, BYTES])
        return _load_pairs(cache, _pairs(rotary, Q, R, NEOX)[None, :], inside, rotary, Q, R)


@triton.jit
def _pairs(rotary: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, NEOX: tl.constexpr):
    """The index of each dim's or of each two dims' angle in a row of the cache."""
    if not NEOX:
        return rotary // 2 + tl.arange(0, Q // 2)
    elif rotary + Q <= R // 2:
        return rotary + tl.arange(0, Q)
    else:
        index = rotary + tl.arange(0, Q)
        return tl.where(index < R // 2, index, index - R // 2)


@triton.jit
def _load_pairs(cache, pair, mask, rotary: tl.constexpr, Q: tl.constexpr, R: tl.constexpr):
    if rotary < 0 or rotary + Q > R:
        mask = mask & (pair >= 0) & (pair < R // 2)
    cos = tl.load(cache + pair, mask=mask, other=float("nan"))
    sin = tl.load(cache + R // 2 + pair, mask=mask, other=float("nan"))
    return cos, sin


@triton.jit
def _load_words(cache, first: tl.constexpr, COUNT: tl.constexpr, mask):
    offsets = (first // 2 + tl.arange(0, COUNT // 2))[None, :]
    if cache.dtype.element_ty == tl.bfloat16:
        return tl.load(cache.to(tl.pointer_type(tl.int32))[:, None] + offsets, mask=mask, other=BF16_NAN_PAIR)
    else:
        return tl.load(cache.to(tl.pointer_type(tl.int64))[:, None] + offsets, mask=mask, other=FP32_NAN_PAIR)
