"""Old names that keep working: one table, one DeprecationWarning a call site, the same bits.

They write into buffers of the caller's, whose first T rows are used. Nothing is written where a buffer does not fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _abi, _checks, _debug, _library, _requests


@dataclass(frozen=True)
class OldName:
    """One row of the table: `since` deprecated the name, and it goes in `removed_in`."""

    name: str
    replacement: str
    since: str
    removed_in: str

    @property
    def message(self) -> str:
        """What the warning says."""
        return (
            f"iq_ops.{self.name} is deprecated since iq-ops {self.since} and will be removed in {self.removed_in}: "
            f"use {self.replacement}"
        )


TABLE: Mapping[str, OldName] = {
    row.name: row
    for row in (
        OldName(
            "fused_indexer_q_rope_quant_mxfp4_cutedsl",
            "iq_ops.fused_indexer_q_rope_quant_out(..., use_fp4=True, q_out=..., q_scale_out=..., weights_out=...)",
            since="0.1.0",
            removed_in="1.0.0",
        ),
        OldName(
            "fused_indexer_q_rope_quant_fp8_cutedsl",
            "iq_ops.fused_indexer_q_rope_quant_out(..., q_out=..., weights_out=...)",
            since="0.1.0",
            removed_in="1.0.0",
        ),
        OldName(
            "_INDEXER_Q_MXFP4_KERNEL",
            "iq_ops.fused_indexer_q_rope_quant_out(..., use_fp4=True, q_out=..., q_scale_out=..., weights_out=...)",
            since="0.1.0",
            removed_in="1.0.0",
        ),
        OldName(
            "_INDEXER_Q_FP8_KERNEL",
            "iq_ops.fused_indexer_q_rope_quant_out(..., q_out=..., weights_out=...)",
            since="0.1.0",
            removed_in="1.0.0",
        ),
    )
}

# What the old functions called the ABI's tensors.
_OLD_ARGUMENTS = {
    "q": "index_q",
    "cos_sin_cache": "index_q_cos_sin_cache",
    "weights": "index_weights",
    "q_fp8": "index_q_fp8",
    "q_packed": "index_q_packed",
    "q_scale": "index_q_scale",
    "weights_out": "index_weights_out",
}


def fused_indexer_q_rope_quant_mxfp4_cutedsl(
    positions: Tensor,
    index_q: Tensor,
    index_q_cos_sin_cache: Tensor,
    index_weights: Tensor,
    index_weights_softmax_scale: float,
    index_weights_head_scale: float,
    index_q_packed: Tensor,
    index_q_scale: Tensor,
    index_weights_out: Tensor,
) -> None:
    """Old name of the MXFP4 call. index_q_scale: uint8 (T, H, D/32), or int32 (T, H) where D is 128."""
    _warn("fused_indexer_q_rope_quant_mxfp4_cutedsl")
    tensors = {
        "positions": positions, "q": index_q, "cos_sin_cache": index_q_cos_sin_cache, "weights": index_weights,
        "q_packed": index_q_packed, "q_scale": index_q_scale, "weights_out": index_weights_out,
    }  # fmt: skip
    scales = (index_weights_softmax_scale, index_weights_head_scale)
    _call("indexer_q_mxfp4", tensors, scales, _OLD_ARGUMENTS)


def fused_indexer_q_rope_quant_fp8_cutedsl(
    positions: Tensor,
    index_q: Tensor,
    index_q_cos_sin_cache: Tensor,
    index_weights: Tensor,
    index_weights_softmax_scale: float,
    index_weights_head_scale: float,
    index_q_fp8: Tensor,
    index_weights_out: Tensor,
) -> None:
    """Old name of the FP8 call. index_q_fp8: (T, H, D) float8_e4m3fn or uint8."""
    _warn("fused_indexer_q_rope_quant_fp8_cutedsl")
    tensors = {
        "positions": positions, "q": index_q, "cos_sin_cache": index_q_cos_sin_cache, "weights": index_weights,
        "q_fp8": index_q_fp8, "weights_out": index_weights_out,
    }  # fmt: skip
    scales = (index_weights_softmax_scale, index_weights_head_scale)
    _call("indexer_q_fp8", tensors, scales, _OLD_ARGUMENTS)


def _INDEXER_Q_MXFP4_KERNEL(  # noqa: N802 - the old name of a kernel object that was called
    *,
    positions: Tensor,
    q: Tensor,
    cos_sin_cache: Tensor,
    weights: Tensor,
    weights_softmax_scale: float,
    weights_head_scale: float,
    q_packed: Tensor,
    q_scale: Tensor,
    weights_out: Tensor,
    rope_style: str = "interleaved",
    rope_at: str = "tail",
    hadamard: bool = False,
) -> None:
    """Old name of the raw MXFP4 call."""
    _warn("_INDEXER_Q_MXFP4_KERNEL")
    tensors = {
        "positions": positions, "q": q, "cos_sin_cache": cos_sin_cache, "weights": weights,
        "q_packed": q_packed, "q_scale": q_scale, "weights_out": weights_out,
    }  # fmt: skip
    scales = (weights_softmax_scale, weights_head_scale)
    _call("indexer_q_mxfp4", tensors, scales, {}, rope_style, rope_at, hadamard)


def _INDEXER_Q_FP8_KERNEL(  # noqa: N802 - the old name of a kernel object that was called
    *,
    positions: Tensor,
    q: Tensor,
    cos_sin_cache: Tensor,
    weights: Tensor,
    weights_softmax_scale: float,
    weights_head_scale: float,
    q_fp8: Tensor,
    weights_out: Tensor,
    rope_style: str = "interleaved",
    rope_at: str = "tail",
    hadamard: bool = False,
) -> None:
    """Old name of the raw FP8 call. q_fp8: (T, H, D) float8_e4m3fn or uint8."""
    _warn("_INDEXER_Q_FP8_KERNEL")
    tensors = {
        "positions": positions, "q": q, "cos_sin_cache": cos_sin_cache, "weights": weights,
        "q_fp8": q_fp8, "weights_out": weights_out,
    }  # fmt: skip
    scales = (weights_softmax_scale, weights_head_scale)
    _call("indexer_q_fp8", tensors, scales, {}, rope_style, rope_at, hadamard)


def _call(
    name: str, tensors: dict[str, Any], scales: tuple[float, float], names: Mapping[str, str], *options: Any
) -> None:
    """Run an op into byte views of the first T rows of the buffers; errors carry the old argument names."""
    op = _abi.OPS[name]
    inputs = {spec.name: tensors[spec.name] for spec in op.tensors if not spec.output}
    _checks.check_call(op, inputs, names)
    tokens = tensors["q"].shape[0]
    outputs = {spec.name: tensors[spec.name] for spec in op.tensors if spec.output}
    for argument, buffer in outputs.items():
        if isinstance(buffer, Tensor) and buffer.dim():
            rows = buffer[:tokens] if buffer.shape[0] > tokens else buffer
            if argument == "q_fp8" and buffer.dtype is torch.float8_e4m3fn:
                rows = rows.view(torch.uint8)
            elif argument == "q_scale" and buffer.dtype is torch.int32:
                rows = rows.unsqueeze(-1).view(torch.uint8)
            outputs[argument] = rows
    _checks.check_call(op, {**inputs, **outputs}, names)
    if not torch.compiler.is_compiling():
        _requests.check_ahead(op, {**inputs, **outputs}, names)
    run = _library.INDEXER_Q_MXFP4 if "q_scale" in outputs else _library.INDEXER_Q_FP8
    try:
        run(*inputs.values(), *scales, *outputs.values(), *options)
    except _debug.BadValueError as bad:
        raise ValueError(bad.told(names)) from None


def _warn(name: str) -> None:
    if torch.compiler.is_compiling():
        _warn_while_tracing(name)
    else:
        warnings.warn(TABLE[name].message, DeprecationWarning, stacklevel=3)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _warn_while_tracing(name: str) -> None:
    """Warn at the traced caller's line: torch.compile traces no `warnings.warn`, and knows its own stack."""
    context = torch._guards.TracingContext.try_get()
    frames = torch._guards.TracingContext.extract_stack() if context is not None else []
    caller = frames[-3] if len(frames) >= 3 else None  # the caller, the old name, `_warn`
    where = (caller.filename, caller.lineno or 1) if caller else (__file__, 1)
    warnings.warn_explicit(TABLE[name].message, DeprecationWarning, *where, registry=_traced.setdefault(where[0], {}))


_traced: dict[str, dict[Any, Any]] = {}  # as `__warningregistry__`, for callers that are traced, not run
