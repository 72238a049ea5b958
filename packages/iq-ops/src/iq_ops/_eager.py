"""Plain eager calls into new memory: what `_library` does, with the outputs of a known signature allocated as known.

New memory overlaps nothing, and an allocator aligns it alike every time, so that a signature is one of inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import _abi, _debug, _library

PACKED_SCALE_HEAD_DIM = 128  # four scale bytes of a row make one little-endian int32
# Global look-ups, where attributes would cost twice.
_is_grad_enabled, _signatures = torch.is_grad_enabled, _library.signatures
_uint8 = torch.uint8


@_debug.checking
def quantize(
    positions: Tensor,
    q: Tensor,
    cos_sin_cache: Tensor,
    weights: Tensor,
    weights_softmax_scale: float,
    weights_head_scale: float,
    use_fp4: bool,
    weights_out_dtype: torch.dtype,
    rope_style: str,
    rope_at: str,
    hadamard: bool,
    backend: str | None,
) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor]:
    """Return what the public function returns. A hot path: flat, and each line counted in time."""
    p0, p1, p2, p3 = positions.data_ptr(), q.data_ptr(), cos_sin_cache.data_ptr(), weights.data_ptr()
    key = (
        "indexer_q_mxfp4" if use_fp4 else "indexer_q_fp8", "into new memory",
        positions.dtype, positions.stride(), q.shape, q.stride(), q.get_device(),
        cos_sin_cache.dtype, cos_sin_cache.shape, cos_sin_cache.stride(), weights.dtype, weights.stride(),
        weights_out_dtype, rope_style, rope_at, hadamard, backend,
        _is_grad_enabled() and (q.requires_grad or weights.requires_grad or cos_sin_cache.requires_grad),
        (p0 | p1 | p2 | p3) & 255 and (p0 & 255, p1 & 255, p2 & 255, p3 & 255),
    )  # fmt: skip
    entry = _signatures.get(key)
    if entry is not None and p0 and p1 and p2 and p3:  # without memory: no tokens, or a zero tensor
        run, allocations = entry
    else:
        allocations = _allocations(q, use_fp4, weights_out_dtype)
        run = partial(_first_run, key, allocations, (rope_style, rope_at, hadamard), backend)
    if use_fp4:
        new_packed, new_scale, scale_bytes_shape, new_weights = allocations
        q_packed, q_scale, weights_out = new_packed(), new_scale(), new_weights()
        q_scale_bytes = q_scale
        if scale_bytes_shape:
            q_scale_bytes = q_scale.view(_uint8).resize_(*scale_bytes_shape)  # the same bytes; a second view costs more
        run(
            positions, q, cos_sin_cache, weights, weights_softmax_scale, weights_head_scale,
            q_packed, q_scale_bytes, weights_out,
        )  # fmt: skip
        return (q_packed, q_scale), weights_out
    new_codes, new_weights = allocations
    q_fp8, weights_out = new_codes(), new_weights()
    run(
        positions, q, cos_sin_cache, weights, weights_softmax_scale, weights_head_scale, q_fp8.view(_uint8), weights_out
    )
    return q_fp8, weights_out


def _allocations(q: Tensor, use_fp4: bool, weights_out_dtype: torch.dtype) -> list[Any]:
    """What allocates the outputs; of MXFP4 also the shape of int32 scales as bytes, where they are such."""
    tokens, heads, head_dim = q.shape
    new_weights = _allocation(q, weights_out_dtype, tokens, heads)
    if not use_fp4:
        return [_allocation(q, torch.float8_e4m3fn, tokens, heads, head_dim), new_weights]
    new_packed = _allocation(q, torch.uint8, tokens, heads, head_dim // 2)
    scale_shape = tokens, heads, head_dim // _abi.MX_BLOCK
    if head_dim == PACKED_SCALE_HEAD_DIM:
        return [new_packed, _allocation(q, torch.int32, tokens, heads), scale_shape, new_weights]
    return [new_packed, _allocation(q, torch.uint8, *scale_shape), None, new_weights]


def _allocation(q: Tensor, dtype: torch.dtype, *shape: int) -> Callable[[], Tensor]:
    """What allocates a tensor beside `q`. Like a tensor without memory costs three quarters of by shape and dtype.

    Not on the CPU: there such tensors, kept in the heap between blocks that come and go, would keep it from shrinking.
    """
    if q.is_cpu:
        return partial(torch.empty, shape, dtype=dtype, device=q.device)
    template = torch.empty(shape, dtype=dtype, device=q.device)
    template.untyped_storage().resize_(0)
    return partial(torch.empty_like, template)


def _first_run(
    key: tuple[Any, ...], allocations: list[Any], options: tuple[str, str, bool], backend: str | None, *arguments: Any
) -> None:
    """Make the first call of a signature, with the arguments of a bound one, and remember what runs the next."""
    names = [spec.name for spec in _abi.OPS[key[0]].tensors]
    tensors = dict(zip(names, (*arguments[:4], *arguments[6:]), strict=True))
    run = _library.first_call(key[0], tensors, arguments[4:6], options, backend)
    if run is not None:
        _library.remember(key, run, allocations)
