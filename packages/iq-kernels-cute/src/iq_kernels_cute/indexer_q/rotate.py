"""Device code of the rotation: load a lane's cosines and sines, rotate its vectors (contract, steps 1 and 2).

Whether a chunk is rotary for all lanes, for none or for some is known when compiling: none costs nothing, and only a
mixed chunk pays for a select.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutlass import Boolean, Int32, Int64, Uint32

from . import ptx
from .config import Variant

BF16_NAN_PAIR = 0x7FC07FC0
FP32_NAN = 0x7FC00000
SIGN = 0x80000000


@dataclass(frozen=True)
class Lane:
    """Where a thread stands: `index` among the lanes of its row, `first` is the warp's lane that has index 0."""

    index: Int32
    first: Int32


@dataclass(frozen=True)
class Angles:
    """What rotates one chunk's vector: fp32 words. interleaved: one a pair; neox: one a dim, the sines signed."""

    cos: list[Uint32]
    sin: list[Uint32]
    rotary: Boolean | None  # None: in every lane


def rotary_lanes(v: Variant, chunk: int) -> list[int]:
    """The lanes whose vector of this chunk lies in the rotary dims."""
    first_dim = chunk * v.chunk_dims - v.rope_start
    return [lane for lane in range(v.lanes_per_row) if 0 <= first_dim + lane * v.vector < v.rope_dim]


def load_angles(v: Variant, lane: Lane, row: Int64, inside: Boolean) -> list[Angles | None]:
    """Load each chunk's cosines and sines from the cache row at address `row`; NaN where `inside` is false."""
    return [_load_chunk(v, lane, row, inside, chunk) if rotary_lanes(v, chunk) else None for chunk in range(v.chunks)]


def rotate(v: Variant, lane: Lane, vectors: list[list[Uint32]], angles: list[Angles | None]) -> list[list[Uint32]]:
    """Rotate one head's vectors, one list of bf16 pairs a chunk; each bf16 as fp32 if a Hadamard transform follows."""
    return [
        _unrotated(v, vector) if chunk_angles is None else _rotate_chunk(v, lane, vectors, chunk, chunk_angles)
        for chunk, (vector, chunk_angles) in enumerate(zip(vectors, angles, strict=True))
    ]


def _load_chunk(v: Variant, lane: Lane, row: Int64, inside: Boolean, chunk: int) -> Angles:
    neox = v.rope_style == "neox"
    item_bytes = 4 if v.cos_sin_cache_dtype == "float32" else 2
    half = v.rope_dim // 2
    first_dim = chunk * v.chunk_dims - v.rope_start  # of lane 0, counted from the first rotary dim
    everywhere = len(rotary_lanes(v, chunk)) == v.lanes_per_row
    dim = lane.index * v.vector + first_dim
    rotary = None if everywhere else Uint32(dim) < Uint32(v.rope_dim)
    wanted = inside if rotary is None else inside & rotary
    sign = None
    if neox:
        in_second_half = dim >= half
        sign = ptx.select(in_second_half, 0, SIGN)  # a' = a*cos + b*(-sin), b' = b*cos + a*sin
        dim = dim - Int32(ptx.select(in_second_half, half, 0))
        address, offset, count = row + Int64(dim) * item_bytes, 0, v.vector
    else:
        address, offset, count = row + Int64(lane.index * (v.vector // 2 * item_bytes)), first_dim // 2 * item_bytes, 0
        count = v.vector // 2
    cos = _load_floats(v, wanted, address, offset, count)
    sin = _load_floats(v, wanted, address, offset + half * item_bytes, count)
    if sign is not None:
        sin = [word ^ sign for word in sin]
    return Angles(cos, sin, rotary)


def _load_floats(v: Variant, wanted: Boolean, address: Int64, offset: int, count: int) -> list[Uint32]:
    """Load `count` consecutive cache entries as fp32 words, in the widest loads up to 128 bits."""
    fp32 = v.cos_sin_cache_dtype == "float32"
    remaining, words = (count if fp32 else count // 2), []
    while remaining:
        width = min(4, remaining)
        fallback = FP32_NAN if fp32 else BF16_NAN_PAIR
        words += ptx.load_if(wanted, fallback, address, offset, width, v.cache_modifier)
        offset, remaining = offset + 4 * width, remaining - width
    if fp32:
        return words
    return [half for word in words for half in (ptx.low_f32(word), ptx.high_f32(word))]


def _rotate_chunk(v: Variant, lane: Lane, vectors: list[list[Uint32]], chunk: int, angles: Angles) -> list[Uint32]:
    own = vectors[chunk]
    if v.rope_style == "neox":
        partners = _neox_partners(v, lane, vectors, chunk)
        rotated = [_rotate_neox(pair, partners[i], angles, 2 * i) for i, pair in enumerate(own)]
    else:
        rotated = [_rotate_pair(pair, angles.cos[i], angles.sin[i]) for i, pair in enumerate(own)]
    if v.hadamard:
        words = [ptx.round_bf16(value) for values in rotated for value in values]
    else:
        words = [ptx.round_bf16x2(low, high) for low, high in rotated]
    if angles.rotary is None:
        return words
    return [ptx.select(angles.rotary, new, old) for new, old in zip(words, _unrotated(v, own), strict=True)]


def _unrotated(v: Variant, pairs: list[Uint32]) -> list[Uint32]:
    return [half for pair in pairs for half in (ptx.low_f32(pair), ptx.high_f32(pair))] if v.hadamard else pairs


def _rotate_pair(pair: Uint32, cos: Uint32, sin: Uint32) -> tuple[Uint32, Uint32]:
    a, b = ptx.low_f32(pair), ptx.high_f32(pair)
    return ptx.sub(ptx.mul(a, cos), ptx.mul(b, sin)), ptx.add(ptx.mul(b, cos), ptx.mul(a, sin))


def _rotate_neox(own: Uint32, partner: Uint32, angles: Angles, first: int) -> tuple[Uint32, Uint32]:
    low, high = (
        ptx.add(ptx.mul(half(own), angles.cos[i]), ptx.mul(half(partner), angles.sin[i]))
        for i, half in enumerate((ptx.low_f32, ptx.high_f32), start=first)
    )
    return low, high


def _neox_partners(v: Variant, lane: Lane, vectors: list[list[Uint32]], chunk: int) -> list[Uint32]:
    """The vector half a rotary dim away, of the other half: from this lane's registers or from another lane's.

    Vectors are numbered chunk * lanes_per_row + lane. Several chunks may hold the partners of one chunk's lanes; then
    each is fetched, and a lane takes its own.
    """
    lanes, half = v.lanes_per_row, v.rope_dim // 2 // v.vector
    start = v.rope_start // v.vector

    def partner_of(number: int) -> int:
        return number + half if number - start < half else number - half

    sources = [divmod(partner_of(chunk * lanes + i), lanes) for i in rotary_lanes(v, chunk)]
    stays = all(source == i for (_, source), i in zip(sources, rotary_lanes(v, chunk), strict=True))
    number = lane.index + chunk * lanes
    partner = number + Int32(ptx.select(number - start < half, half, -half & 0xFFFFFFFF))
    from_lane = lane.first + (partner & (lanes - 1))
    found: list[Uint32] = []
    for candidate in sorted({source for source, _ in sources}):
        words = vectors[candidate]
        if not stays:
            words = [ptx.shuffle_from(word, from_lane) for word in words]
        taken: Any = (partner >= candidate * lanes) & (partner < (candidate + 1) * lanes)
        found = [ptx.select(taken, new, old) for new, old in zip(words, found, strict=True)] if found else words
    return found
