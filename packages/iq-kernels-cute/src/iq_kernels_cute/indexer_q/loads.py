"""Device code of the loads: which work item a thread has, where its inputs lie, and what it reads of them."""

from __future__ import annotations

from typing import Any

from cutlass import Boolean, Int32, Int64, Uint32, cute

from . import ptx
from .config import BF16_BYTES, WIDE_LOADS, Variant
from .layout import ITEM_BYTES
from .rotate import Lane

CACHE_LINE = 128


class Item:
    """A thread's work item: its lane of the row, its token, its first head, and whether it is one at all."""

    def __init__(self, lane: Lane, token: Uint32, first_head: Uint32, live: Boolean, has_later: Boolean) -> None:
        self.lane, self.token, self.first_head, self.live, self.has_later = lane, token, first_head, live, has_later

    def row(self, v: Variant) -> Int64:
        """The number of the first row of (T*H) rows."""
        return Int64(self.token) * v.num_heads + Int64(self.first_head)


def item_of(v: Variant, items: Int32) -> Item:
    """The work item of this thread, of `items`; past the end, the last one again, not live."""
    thread = Uint32(cute.arch.thread_idx()[0])
    number = Uint32(cute.arch.block_idx()[0]) * v.items_per_block + thread // v.lanes_per_row
    live = Boolean(True)
    if v.groups % v.items_per_block:  # otherwise a block is part of one token, and all its items exist
        live = number < Uint32(items)
        number = ptx.min_u32(number, Uint32(items) - 1)
    lane = Int32(thread % v.lanes_per_row)
    first = Int32(thread % 32) - lane
    token, first_head = number // v.groups, number % v.groups * v.heads_per_thread
    return Item(Lane(lane, first), token, first_head, live, number + v.prefetch_tokens * v.groups < Uint32(items))


def stride_of(v: Variant, runtime: Int64, dense: int) -> Any:
    """A stride in elements: the constant of a dense variant, else the kernel's argument."""
    return dense if v.dense else runtime


def position_address(v: Variant, positions: Int64, stride: Int64, token: Uint32) -> Int64:
    """Where the token's position lies."""
    return positions + Int64(token) * stride_of(v, stride, 1) * ITEM_BYTES[v.positions_dtype]


def load_position(v: Variant, address: Int64) -> Int64:
    """A position, widened to 64 bits."""
    if v.positions_dtype == "int64":
        return ptx.load_s64(address)
    return Int64(Int32(ptx.load(address, 0, 1)[0]))


def load_later_position(v: Variant, address: Int64, stride: Int64, item: Item) -> Int64:
    """The position of the token whose cache row this lane prefetches; -1 for a lane that prefetches none.

    The row of a token that a block of the next wave works on is brought into L2 while this wave still computes, so that
    its block waits for L2 only, where it would wait for memory twice in a row: for the position, then for the row.
    """
    if not v.prefetch_tokens:
        return Int64(-1)
    lines = -(-v.rope_dim * ITEM_BYTES[v.cos_sin_cache_dtype] // CACHE_LINE)
    wanted = item.has_later & (item.first_head == 0) & (item.lane.index < lines)
    address = address + v.prefetch_tokens * stride_of(v, stride, 1) * ITEM_BYTES[v.positions_dtype]
    if v.positions_dtype == "int32":
        return Int64(Int32(ptx.load_if(wanted, 0xFFFFFFFF, address, 0, 1, "")[0]))
    low, high = ptx.load_if(wanted, 0xFFFFFFFF, address, 0, 2, "")
    return Int64(low) | (Int64(high) << 32)


def row_address(v: Variant, q: Int64, token_stride: Int64, head_stride: Int64, item: Item) -> Int64:
    """Where the lane's first vector of the item's first head lies."""
    elements = (
        Int64(item.token) * stride_of(v, token_stride, v.num_heads * v.head_dim)
        + Int64(item.first_head) * stride_of(v, head_stride, v.head_dim)
        + Int64(item.lane.index * v.vector)
    )
    return q + elements * BF16_BYTES


def load_rows(v: Variant, base: Int64, head_stride: Int64) -> list[list[list[Uint32]]]:
    """The lane's vectors as bf16 pairs, by [head][chunk], in the widest loads that the target has."""
    words = v.vector // 2
    widest = 8 if v.capability >= WIDE_LOADS and v.dense else 4
    rows = []
    for head in range(v.heads_per_thread):
        if v.dense:
            address, head_offset = base, head * v.head_dim * BF16_BYTES
        else:
            address, head_offset = base + head_stride * (head * BF16_BYTES), 0
        vectors = []
        for chunk in range(v.chunks):
            offset = head_offset + chunk * v.chunk_dims * BF16_BYTES
            vector: list[Uint32] = []
            while len(vector) < words:
                width = min(widest, words - len(vector))
                vector += ptx.load(address, offset + 4 * len(vector), width, v.load_modifier)
            vectors.append(vector)
        rows.append(vectors)
    return rows


def weight_rounds(v: Variant) -> list[list[int]]:
    """Which of a thread's heads the lanes of a row take, lane by lane, for the weights: one list a round."""
    heads, lanes = list(range(v.heads_per_thread)), v.lanes_per_row
    return [heads[i : i + lanes] for i in range(0, len(heads), lanes)]


def weight_addresses(v: Variant, weights: Int64, strides: tuple[Int64, Int64], item: Item) -> list[Int64]:
    """Where the lane's weight of each round lies; a lane without one repeats another's."""
    addresses = []
    for heads in weight_rounds(v):
        head = item.first_head + ptx.min_u32(Uint32(item.lane.index), len(heads) - 1) + heads[0]
        index = Int64(item.token) * stride_of(v, strides[0], v.num_heads) + Int64(head) * stride_of(v, strides[1], 1)
        addresses.append(weights + index * ITEM_BYTES[v.weights_dtype])
    return addresses


def load_weight(v: Variant, address: Int64) -> Uint32:
    """One weight as fp32."""
    if v.weights_dtype == "float32":
        return ptx.load(address, 0, 1)[0]
    raw = ptx.load_u16(address)
    return raw << 16 if v.weights_dtype == "bfloat16" else ptx.widen_f16(raw)
