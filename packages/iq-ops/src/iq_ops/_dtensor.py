"""DTensors through the public functions: each rank quantizes its own tokens or heads, without communication.

The FP8 row scale and the MXFP4 block scales are per head, so a shard over tokens or over heads is whole in itself. A
shard over the head dim is not. Imported when a DTensor is first seen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from . import _checks, indexer
from .specs import IndexerQSpec

# For each argument: where a shard of q over tokens, and over heads, leaves it. None: replicated.
_SHARD_DIMS = {
    "positions": (0, None),
    "index_q_cos_sin_cache": (None, None),
    "index_weights": (0, 1),
    "q_out": (0, 1),
    "q_scale_out": (0, 1),
    "weights_out": (0, 1),
}


def fused_indexer_q_rope_quant(
    positions: Tensor,
    index_q: Tensor,
    index_q_cos_sin_cache: Tensor,
    index_weights: Tensor,
    index_weights_softmax_scale: float,
    index_weights_head_scale: float,
    use_fp4: bool,
    weights_out_dtype: torch.dtype,
    *,
    spec: IndexerQSpec,
    backend: str | None,
) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor]:
    """Do `iq_ops.fused_indexer_q_rope_quant` on each rank's shard; the outputs are DTensors sharded as index_q.

    positions, index_q_cos_sin_cache and index_weights are DTensors of matching placements; one that ought to be
    replicated may be a plain tensor. Raises ValueError for any other placement.
    """
    q = _whole_rows(index_q)
    quantized, weights_out = indexer.fused_indexer_q_rope_quant(
        _local("positions", positions, q),
        q.to_local(),
        _local("index_q_cos_sin_cache", index_q_cos_sin_cache, q),
        _local("index_weights", index_weights, q),
        index_weights_softmax_scale,
        index_weights_head_scale,
        use_fp4,
        weights_out_dtype,
        spec=spec,
        backend=backend,
    )
    if isinstance(quantized, tuple):
        return (_global(quantized[0], q), _global(quantized[1], q)), _global(weights_out, q)
    return _global(quantized, q), _global(weights_out, q)


def fused_indexer_q_rope_quant_out(
    positions: Tensor,
    index_q: Tensor,
    index_q_cos_sin_cache: Tensor,
    index_weights: Tensor,
    index_weights_softmax_scale: float,
    index_weights_head_scale: float,
    use_fp4: bool,
    weights_out_dtype: torch.dtype,
    *,
    q_out: Tensor,
    weights_out: Tensor,
    q_scale_out: Tensor | None,
    spec: IndexerQSpec,
    backend: str | None,
) -> None:
    """Do `iq_ops.fused_indexer_q_rope_quant_out` on each rank's shard; the buffers are DTensors sharded as index_q."""
    q = _whole_rows(index_q)
    indexer.fused_indexer_q_rope_quant_out(
        _local("positions", positions, q),
        q.to_local(),
        _local("index_q_cos_sin_cache", index_q_cos_sin_cache, q),
        _local("index_weights", index_weights, q),
        index_weights_softmax_scale,
        index_weights_head_scale,
        use_fp4,
        weights_out_dtype,
        q_out=_local("q_out", q_out, q),
        weights_out=_local("weights_out", weights_out, q),
        q_scale_out=None if q_scale_out is None else _local("q_scale_out", q_scale_out, q),
        spec=spec,
        backend=backend,
    )


def _whole_rows(q: Any) -> DTensor:
    """Return q where no placement splits or leaves unreduced the rows that share a scale."""
    for placement in q.placements:
        if not (placement.is_replicate() or placement.is_shard(0) or placement.is_shard(1)):
            raise _misplaced("index_q", "Replicate(), Shard(0) over tokens or Shard(1) over heads", str(placement))
    sharded: DTensor = q
    return sharded


def _local(name: str, tensor: Tensor, q: DTensor) -> Tensor:
    """Return this rank's part of an argument whose placements suit those of q."""
    expected = tuple(_placement(name, placement) for placement in q.placements)
    if not isinstance(tensor, DTensor):
        if all(placement.is_replicate() for placement in expected) and not name.endswith("out"):
            return tensor
        raise _misplaced(name, f"a DTensor placed {expected}", "a plain tensor")
    if tensor.device_mesh != q.device_mesh or tensor.placements != expected:
        actual = f"{tensor.placements} on {tensor.device_mesh}"
        raise _misplaced(name, f"placements {expected} on index_q's mesh {q.device_mesh}", actual)
    return tensor.to_local()


def _placement(name: str, placement: Placement) -> Placement:
    dim = None if placement.is_replicate() else _SHARD_DIMS[name][placement.dim]  # type: ignore[attr-defined]
    return Replicate() if dim is None else Shard(dim)


def _global(local: Tensor, q: DTensor) -> DTensor:
    """Wrap this rank's part of an output, whose first two dims are q's."""
    shape = (*q.shape[:2], *local.shape[2:])
    stride = [1]
    for size in reversed(shape[1:]):
        stride.insert(0, stride[0] * size)
    return DTensor.from_local(
        local, q.device_mesh, q.placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
    )


def _misplaced(name: str, expected: str, actual: str) -> ValueError:
    remedy = "redistribute it first; nothing here communicates."
    return ValueError(_checks.describe_mismatch(name, expected, actual, remedy))
