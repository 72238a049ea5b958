"""The indexer-Q kernel: one pass that rotates, quantizes and scales weights. Device code and its host launcher only.

One work item is a group of heads of one token; the lanes of a row share it, and each keeps its part of every head of
the group in registers. In time: wait for the producer, load the position, then all of q and the weights, then the
cosines and sines that the position names; only then compute.

Every lane runs straight through: a shuffle names the whole warp, so an item past the end repeats the last one and
stores nothing. Offsets are 64-bit, since T*H*D may pass 2**31.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from . import ptx
from .config import Variant
from .hadamard import butterfly_signs, hadamard
from .layout import ITEM_BYTES
from .loads import (
    CACHE_LINE,
    item_of,
    load_later_position,
    load_position,
    load_rows,
    load_weight,
    position_address,
    row_address,
    stride_of,
    weight_addresses,
)
from .rotate import load_angles, rotate
from .scale import row_scales
from .stores import store_block_scales, store_codes, store_weights


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
        item = item_of(v, items)
        position_at = position_address(v, positions, position_stride, item.token)
        row_at = row_address(v, q, token_stride, head_stride, item)
        weights_at = weight_addresses(v, weights, (weights_token_stride, weights_head_stride), item)
        if cutlass.const_expr(v.pdl):
            ptx.wait_for_producer([position_at, row_at, *weights_at])

        position = load_position(v, position_at)
        rows = load_rows(v, row_at, head_stride)
        raw_weights = [load_weight(v, address) for address in weights_at]
        later = load_later_position(v, position_at, position_stride, item)
        ptx.keep_loads_above()  # and do not wait for the position first
        cache_row = cos_sin_cache + position * (
            stride_of(v, cache_stride, v.rope_dim) * ITEM_BYTES[v.cos_sin_cache_dtype]
        )
        inside = (position >= 0) & (position < num_positions)
        angles = load_angles(v, item.lane, cache_row, inside)

        rows = [rotate(v, item.lane, vectors, angles) for vectors in rows]
        if cutlass.const_expr(v.hadamard):
            signs = butterfly_signs(v, item.lane)
            rows = [hadamard(v, signs, vectors) for vectors in rows]
        row_scale = row_scales(v, rows)
        padding = position < 0
        store_codes(v, codes, item, rows, row_scale, padding)
        if cutlass.const_expr(v.op == "indexer_q_mxfp4"):
            store_block_scales(v, scales, item, row_scale, padding)
        store_weights(v, weights_out, item, raw_weights, combined_scale, row_scale, padding)
        if cutlass.const_expr(v.prefetch_tokens):
            later_row = cos_sin_cache + later * (
                stride_of(v, cache_stride, v.rope_dim) * ITEM_BYTES[v.cos_sin_cache_dtype]
            )
            later_inside = (later >= 0) & (later < num_positions)
            ptx.prefetch_if(later_inside, later_row + Int64(item.lane.index * CACHE_LINE))
