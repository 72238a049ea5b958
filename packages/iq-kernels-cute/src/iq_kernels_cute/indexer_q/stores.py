"""Device code of the stores: codes, block scales and weights of a work item; zeros for a padding token."""

from __future__ import annotations

from cutlass import Boolean, Float32, Int64, Uint32
from cutlass._mlir.dialects import arith

from iq_kernels_cute import _abi

from . import ptx
from .config import Variant
from .encode import encode
from .layout import ITEM_BYTES
from .loads import Item, weight_rounds
from .scale import Scale

E8M0_NAN = 0xFF


def store_codes(
    v: Variant,
    codes: Int64,
    item: Item,
    rows: list[list[list[Uint32]]],
    row_scale: list[list[Scale]],
    padding: Boolean,
) -> None:
    """Encode and store the lane's vectors; zeros for a padding token, and for a poisoned MXFP4 block."""
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


def store_block_scales(v: Variant, scales: Int64, item: Item, row_scale: list[list[Scale]], padding: Boolean) -> None:
    """Store the scale bytes: of one row each from its block's first lane, of several a row's together from one lane."""
    kept = ptx.select(padding, 0, 0xFFFFFFFF)
    first_byte = scales + item.row(v) * (v.head_dim // _abi.MX_BLOCK)
    if v.heads_per_thread == 1:
        _store_bytes(v, first_byte, item, row_scale[0], kept)
    else:
        _store_rows(v, first_byte, item, row_scale, kept)


def _store_bytes(v: Variant, first_byte: Int64, item: Item, chunk_scales: list[Scale], kept: Uint32) -> None:
    lanes_per_block = _abi.MX_BLOCK // v.vector
    lane = Uint32(item.lane.index)
    wanted = item.live & (lane % lanes_per_block == 0)
    base = first_byte + Int64(lane // lanes_per_block)
    for chunk, scale in enumerate(chunk_scales):
        byte = (scale.exponent | scale.poison) & kept
        ptx.store_low_if(wanted, base, chunk * (v.chunk_dims // _abi.MX_BLOCK), byte, 1)


def _store_rows(v: Variant, first_byte: Int64, item: Item, row_scale: list[list[Scale]], kept: Uint32) -> None:
    """Lane i of every block takes row i, and an OR over the lanes joins its bytes."""
    row_bytes = v.head_dim // _abi.MX_BLOCK
    lanes_per_block = _abi.MX_BLOCK // v.vector
    lane = Uint32(item.lane.index)
    shift = lane // lanes_per_block * 8
    base = first_byte + Int64(lane) * row_bytes
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


def store_weights(
    v: Variant,
    weights_out: Int64,
    item: Item,
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
    for heads, raw in zip(weight_rounds(v), raw_weights, strict=True):
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
