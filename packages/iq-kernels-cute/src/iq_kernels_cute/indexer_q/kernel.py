"""The indexer-Q kernel: one pass that rotates, quantizes and scales weights. Device code and its host launcher only.

One work item is a group of heads of one token; the lanes of a row share it, and each keeps its part of every head of
the group in registers. In time: wait for the producer, load the position, then all of q and the weights, then the
cosines and sines that the position names; only then compute.

Every lane runs straight through: a shuffle names the whole warp, so an item past the end repeats the last one and
stores nothing. Offsets are 64-bit, since T*H*D may pass 2**31.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Float32, Int32, Int64, Uint32, cute
from cutlass._mlir.dialects import arith

from iq_kernels_cute import _abi

from . import ptx
from .config import BF16_BYTES, WIDE_LOADS, Variant
from .encode import encode
from .hadamard import butterfly_signs, hadamard
from .rotate import Lane, load_angles, rotate
from .scale import Scale, row_scales

E8M0_NAN = 0xFF
CACHE_LINE = 128
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int64": 8}


class IndexerQ:
    """The kernel of one variant; `fp8` and `mxfp4` are its entry points, which differ in their outputs."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant

    @cute.jit
    def fp8(
        self,
        positions: cute.Tensor,
        q: cute.Tensor,
        cos_sin_cache: cute.Tensor,
        weights: cute.Tensor,
        combined_scale: Float32,
        q_fp8: cute.Tensor,
        weights_out: cute.Tensor,
        stream: Any,
    ) -> None:
        """Launch on `stream`; combined_scale is the contract's C."""
        self._launch(positions, q, cos_sin_cache, weights, combined_scale, q_fp8, q_fp8, weights_out, stream)

    @cute.jit
    def mxfp4(
        self,
        positions: cute.Tensor,
        q: cute.Tensor,
        cos_sin_cache: cute.Tensor,
        weights: cute.Tensor,
        combined_scale: Float32,
        q_packed: cute.Tensor,
        q_scale: cute.Tensor,
        weights_out: cute.Tensor,
        stream: Any,
    ) -> None:
        """Launch on `stream`; combined_scale is the contract's C."""
        self._launch(positions, q, cos_sin_cache, weights, combined_scale, q_packed, q_scale, weights_out, stream)

    def _launch(
        self,
        positions: Any,
        q: Any,
        cos_sin_cache: Any,
        weights: Any,
        combined_scale: Any,
        codes: Any,
        scales: Any,
        weights_out: Any,
        stream: Any,
    ) -> None:
        v = self.variant
        items = Int32(q.shape[0]) * v.groups
        tensors = (positions, q, cos_sin_cache, weights, codes, scales, weights_out)
        strides = (positions.stride[0], q.stride[0], q.stride[1], cos_sin_cache.stride[0], *weights.stride)
        self.kernel(
            *(tensor.iterator.toint() for tensor in tensors),
            *(Int64(stride) for stride in strides),
            items,
            Int64(cos_sin_cache.shape[0]),
            combined_scale,
        ).launch(
            grid=[(items + (v.items_per_block - 1)) // v.items_per_block, 1, 1],
            block=[v.threads, 1, 1],
            stream=stream,
            use_pdl=v.pdl,
            min_blocks_per_mp=v.min_blocks,
            preferred_smem_carveout=0,  # no kernel uses shared memory; unset, a compile would ask a GPU for its size
        )

    @cute.kernel
    def kernel(
        self,
        positions: Int64,
        q: Int64,
        cos_sin_cache: Int64,
        weights: Int64,
        codes: Int64,
        scales: Int64,
        weights_out: Int64,
        position_stride: Int64,
        token_stride: Int64,
        head_stride: Int64,
        cache_stride: Int64,
        weights_token_stride: Int64,
        weights_head_stride: Int64,
        items: Int32,
        num_positions: Int64,
        combined_scale: Float32,
    ) -> None:
        """Process one block's work items. Tensors are addresses, strides count elements."""
        v = self.variant
        if cutlass.const_expr(v.pdl):
            ptx.launch_dependents()
        item = _item(v, items)
        position_at = _position_address(v, positions, position_stride, item.token)
        row_at = _row_address(v, q, token_stride, head_stride, item)
        weights_at = _weight_addresses(v, weights, (weights_token_stride, weights_head_stride), item)
        if cutlass.const_expr(v.pdl):
            ptx.wait_for_producer([position_at, row_at, *weights_at])

        position = _load_position(v, position_at)
        rows = _load_rows(v, row_at, head_stride)
        raw_weights = [_load_weight(v, address) for address in weights_at]
        later = _load_later_position(v, position_at, position_stride, item)
        ptx.keep_loads_above()  # and do not wait for the position first
        cache_row = cos_sin_cache + position * (
            _stride(v, cache_stride, v.rope_dim) * ITEM_BYTES[v.cos_sin_cache_dtype]
        )
        inside = (position >= 0) & (position < num_positions)
        angles = load_angles(v, item.lane, cache_row, inside)

        rows = [rotate(v, item.lane, vectors, angles) for vectors in rows]
        if cutlass.const_expr(v.hadamard):
            signs = butterfly_signs(v, item.lane)
            rows = [hadamard(v, signs, vectors) for vectors in rows]
        row_scale = row_scales(v, rows)
        padding = position < 0
        _store_codes(v, codes, item, rows, row_scale, padding)
        if cutlass.const_expr(v.op == "indexer_q_mxfp4"):
            _store_block_scales(v, scales, item, row_scale, padding)
        _store_weights(v, weights_out, item, raw_weights, combined_scale, row_scale, padding)
        if cutlass.const_expr(v.prefetch_tokens):
            later_row = cos_sin_cache + later * (
                _stride(v, cache_stride, v.rope_dim) * ITEM_BYTES[v.cos_sin_cache_dtype]
            )
            later_inside = (later >= 0) & (later < num_positions)
            ptx.prefetch_if(later_inside, later_row + Int64(item.lane.index * CACHE_LINE))


class _Item:
    """A thread's work item: its lane of the row, its token, its first head, and whether it is one at all."""

    def __init__(self, lane: Lane, token: Uint32, first_head: Uint32, live: Boolean, has_later: Boolean) -> None:
        self.lane, self.token, self.first_head, self.live, self.has_later = lane, token, first_head, live, has_later

    def row(self, v: Variant) -> Int64:
        """The number of the first row of (T*H) rows."""
        return Int64(self.token) * v.num_heads + Int64(self.first_head)


def _item(v: Variant, items: Int32) -> _Item:
    thread = Uint32(cute.arch.thread_idx()[0])
    number = Uint32(cute.arch.block_idx()[0]) * v.items_per_block + thread // v.lanes_per_row
    live = Boolean(True)
    if v.groups % v.items_per_block:  # otherwise a block is part of one token, and all its items exist
        live = number < Uint32(items)
        number = ptx.min_u32(number, Uint32(items) - 1)
    lane = Int32(thread % v.lanes_per_row)
    first = Int32(thread % 32) - lane
    token, first_head = number // v.groups, number % v.groups * v.heads_per_thread
    return _Item(Lane(lane, first), token, first_head, live, number + v.prefetch_tokens * v.groups < Uint32(items))


def _stride(v: Variant, runtime: Int64, dense: int) -> Any:
    return dense if v.dense else runtime


def _position_address(v: Variant, positions: Int64, stride: Int64, token: Uint32) -> Int64:
    return positions + Int64(token) * _stride(v, stride, 1) * ITEM_BYTES[v.positions_dtype]


def _load_position(v: Variant, address: Int64) -> Int64:
    if v.positions_dtype == "int64":
        return ptx.load_s64(address)
    return Int64(Int32(ptx.load(address, 0, 1)[0]))


def _load_later_position(v: Variant, address: Int64, stride: Int64, item: _Item) -> Int64:
    """The position of the token whose cache row this lane prefetches; -1 for a lane that prefetches none.

    The row of a token that a block of the next wave works on is brought into L2 while this wave still computes, so that
    its block waits for L2 only, where it would wait for memory twice in a row: for the position, then for the row.
    """
    if not v.prefetch_tokens:
        return Int64(-1)
    lines = -(-v.rope_dim * ITEM_BYTES[v.cos_sin_cache_dtype] // CACHE_LINE)
    wanted = item.has_later & (item.first_head == 0) & (item.lane.index < lines)
    address = address + v.prefetch_tokens * _stride(v, stride, 1) * ITEM_BYTES[v.positions_dtype]
    if v.positions_dtype == "int32":
        return Int64(Int32(ptx.load_if(wanted, 0xFFFFFFFF, address, 0, 1, "")[0]))
    low, high = ptx.load_if(wanted, 0xFFFFFFFF, address, 0, 2, "")
    return Int64(low) | (Int64(high) << 32)


def _row_address(v: Variant, q: Int64, token_stride: Int64, head_stride: Int64, item: _Item) -> Int64:
    """Where the lane's first vector of the item's first head lies."""
    elements = (
        Int64(item.token) * _stride(v, token_stride, v.num_heads * v.head_dim)
        + Int64(item.first_head) * _stride(v, head_stride, v.head_dim)
        + Int64(item.lane.index * v.vector)
    )
    return q + elements * BF16_BYTES


def _load_rows(v: Variant, base: Int64, head_stride: Int64) -> list[list[list[Uint32]]]:
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


def _weight_rounds(v: Variant) -> list[list[int]]:
    """Which of a thread's heads the lanes of a row take, lane by lane, for the weights: one list a round."""
    heads, lanes = list(range(v.heads_per_thread)), v.lanes_per_row
    return [heads[i : i + lanes] for i in range(0, len(heads), lanes)]


def _weight_addresses(v: Variant, weights: Int64, strides: tuple[Int64, Int64], item: _Item) -> list[Int64]:
    """Where the lane's weight of each round lies; a lane without one repeats another's."""
    addresses = []
    for heads in _weight_rounds(v):
        head = item.first_head + ptx.min_u32(Uint32(item.lane.index), len(heads) - 1) + heads[0]
        index = Int64(item.token) * _stride(v, strides[0], v.num_heads) + Int64(head) * _stride(v, strides[1], 1)
        addresses.append(weights + index * ITEM_BYTES[v.weights_dtype])
    return addresses


def _load_weight(v: Variant, address: Int64) -> Uint32:
    """One weight as fp32."""
    if v.weights_dtype == "float32":
        return ptx.load(address, 0, 1)[0]
    raw = ptx.load_u16(address)
    return raw << 16 if v.weights_dtype == "bfloat16" else ptx.widen_f16(raw)


def _store_codes(
    v: Variant,
    codes: Int64,
    item: _Item,
    rows: list[list[list[Uint32]]],
    row_scale: list[list[Scale]],
    padding: Boolean,
) -> None:
    fp8 = v.op == "indexer_q_fp8"
    halving = 1 if fp8 else 2  # codes of a byte
    kept = ptx.select(padding, 0, 0xFFFFFFFF)
    base = codes + item.row(v) * (v.head_dim // halving) + Int64(item.lane.index * (v.vector // halving))
    for head, (vectors, chunk_scales) in enumerate(zip(rows, row_scale, strict=True)):
        for chunk, (vector, scale) in enumerate(zip(vectors, chunk_scales, strict=True)):
            words = [word & kept if fp8 else word & kept & ~scale.poison for word in encode(v, vector, scale)]
            offset = (head * v.head_dim + chunk * v.chunk_dims) // halving
            if v.vector // halving == 2:
                ptx.store_low_if(item.live, base, offset, words[0], 2, v.store_modifier)
            else:
                ptx.store_if(item.live, base, offset, words, v.store_modifier)


def _store_block_scales(v: Variant, scales: Int64, item: _Item, row_scale: list[list[Scale]], padding: Boolean) -> None:
    """Store the scale bytes of several rows at once: lane i of every block takes row i, and an OR joins its bytes."""
    row_bytes = v.head_dim // _abi.MX_BLOCK
    lanes_per_block = _abi.MX_BLOCK // v.vector
    lane = Uint32(item.lane.index)
    shift = lane // lanes_per_block * 8
    kept = ptx.select(padding, 0, 0xFFFFFFFF)
    base = scales + item.row(v) * row_bytes + Int64(lane) * row_bytes
    placed = [_place_bytes(v, chunk_scales, shift) for chunk_scales in row_scale]
    for first in range(0, v.heads_per_thread, lanes_per_block):
        heads = placed[first : first + lanes_per_block]
        words = _pick(lane % lanes_per_block, heads)
        for i in range(len(words)):
            stride = lanes_per_block
            while stride < v.lanes_per_row:
                words[i] = words[i] | ptx.shuffle_xor(words[i], stride)
                stride *= 2
        words = [word & kept for word in words]
        wanted = item.live & (lane < len(heads))
        if row_bytes < 4:
            ptx.store_low_if(wanted, base, first * row_bytes, words[0], row_bytes)
        else:
            ptx.store_if(wanted, base, first * row_bytes, words)


def _place_bytes(v: Variant, chunk_scales: list[Scale], shift: Uint32) -> list[Uint32]:
    """A lane's own scale bytes of one row, each where it belongs in the row's words; zero elsewhere."""
    row_bytes = v.head_dim // _abi.MX_BLOCK
    words = [Uint32(0)] * max(1, row_bytes // 4)
    for chunk, scale in enumerate(chunk_scales):
        byte = (scale.exponent | scale.poison) & E8M0_NAN
        first = chunk * (v.chunk_dims // _abi.MX_BLOCK)  # byte of the chunk's first block
        if v.chunk_dims // _abi.MX_BLOCK > 4:  # the lanes of one chunk reach into both words
            words = [words[0] | _shifted(byte, shift, 0), words[1] | _shifted(byte, shift, 32)]
        else:
            words[first // 4] = words[first // 4] | (byte << (shift + 8 * (first % 4)))
    return words


def _shifted(byte: Uint32, shift: Uint32, first_bit: int) -> Uint32:
    """The byte moved up by `shift` bits of a 64-bit word, cut to the half that begins at `first_bit`."""
    here = (shift & 32) == first_bit
    return ptx.select(here, byte << (shift & 31), 0)


def _store_weights(
    v: Variant,
    weights_out: Int64,
    item: _Item,
    raw_weights: list[Uint32],
    combined_scale: Float32,
    row_scale: list[list[Scale]],
    padding: Boolean,
) -> None:
    """Scale and store one weight a lane and round (contract, step 6)."""
    item_bytes = ITEM_BYTES[v.weights_out_dtype]
    combined = Uint32(arith.bitcast(Uint32.mlir_type, combined_scale.ir_value()))
    kept = ptx.select(padding, 0, 0xFFFFFFFF)
    lane = Uint32(item.lane.index)
    base = weights_out + item.row(v) * item_bytes + Int64(lane) * item_bytes
    for heads, raw in zip(_weight_rounds(v), raw_weights, strict=True):
        value = ptx.mul(raw, combined)
        if v.op == "indexer_q_fp8":
            factors = [[(row_scale[head][0].exponent << 23) | row_scale[head][0].poison] for head in heads]
            value = ptx.mul(value, _pick(lane, factors)[0])  # of a poisoned row NaN, whose bits are all ones
        if v.weights_out_dtype == "bfloat16":
            value = ptx.round_bf16x2(value, value)
        wanted = item.live & (lane < len(heads))
        if item_bytes == 4:
            ptx.store_if(wanted, base, heads[0] * item_bytes, [value & kept])
        else:
            ptx.store_low_if(wanted, base, heads[0] * item_bytes, value & kept, item_bytes)


def _pick(lane: Uint32, choices: list[list[Uint32]]) -> list[Uint32]:
    """The words of choice number `lane`; the first one where there is no such choice."""
    picked = choices[0]
    for number, words in enumerate(choices[1:], start=1):
        picked = [ptx.select(lane == number, new, old) for new, old in zip(words, picked, strict=True)]
    return picked
