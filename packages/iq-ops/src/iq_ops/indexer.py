"""The public functions: allocate the outputs, call the op or what implements it, view its bytes.

Into new memory a plain eager call does all of this in `_eager`.

What a call returns is CONTRACT 1: rotated queries in FP8 (e4m3fn) with the power-of-two row scale folded into the
head weights, or in MXFP4 (E2M1 with e8m0 block scales, OCP Microscaling Formats v1.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from . import _abi, _checks, _debug, _direct, _eager, _library, _requests
from .specs import DEEPSEEK_V4, IndexerQSpec, check_spec

# What this module calls the ABI's tensors, for errors that speak the caller's language.
PUBLIC_NAMES = {
    "q": "index_q",
    "cos_sin_cache": "index_q_cos_sin_cache",
    "weights": "index_weights",
    "q_fp8": "q_out",
    "q_packed": "q_out",
    "q_scale": "q_scale_out",
}
WEIGHTS_OUT_DTYPES = (torch.float32, torch.bfloat16)
_goes_unseen = _direct.goes_unseen  # global look-ups, where attributes would cost twice
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_run_eagerly = _eager.quantize
_run_fp8, _run_mxfp4 = _library.indexer_q_fp8, _library.indexer_q_mxfp4
_op_fp8, _op_mxfp4 = _library.INDEXER_Q_FP8, _library.INDEXER_Q_MXFP4


def fused_indexer_q_rope_quant(
    positions: Tensor,
    index_q: Tensor,
    index_q_cos_sin_cache: Tensor,
    index_weights: Tensor,
    index_weights_softmax_scale: float,
    index_weights_head_scale: float,
    use_fp4: bool = False,
    weights_out_dtype: torch.dtype = torch.float32,
    *,
    spec: IndexerQSpec = DEEPSEEK_V4,
    backend: str | None = None,
) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor]:
    """Rotate, quantize and weight the indexer's queries in one pass.

    positions: (T,) int32 or int64; negative marks a padding token.
    index_q: (T, H, D) bfloat16, D one of 32, 64, 128, 256, stride(-1) == 1, other strides free.
    index_q_cos_sin_cache: (P, R) float32 or bfloat16, a row being R/2 cosines, then R/2 sines.
    index_weights: (T, H) bfloat16, float16 or float32.
    The two scales multiply the weights; weights_out_dtype is torch.float32 or torch.bfloat16.
    backend: "cute", "triton" or "reference" forces one; None takes the best, or what IQ_OPS_BACKEND names.

    Returns `(q_fp8, weights_out)`: float8_e4m3fn (T, H, D) and (T, H), the row scale folded into weights_out. With
    use_fp4 `((q_packed, q_scale), weights_out)`: uint8 (T, H, D/2), the even dim in the low nibble; int32 (T, H), four
    e8m0 bytes little-endian, where D is 128, else uint8 (T, H, D/32). All are new and contiguous.

    Raises TypeError or ValueError naming argument, expected, actual and remedy; `BackendUnavailableError` for a forced
    backend that cannot run the call.
    """
    if type(index_q) is not Tensor and hasattr(index_q, "device_mesh"):
        from . import _dtensor

        return _dtensor.fused_indexer_q_rope_quant(
            positions, index_q, index_q_cos_sin_cache, index_weights, index_weights_softmax_scale,
            index_weights_head_scale, use_fp4, weights_out_dtype, spec=spec, backend=backend,
        )  # fmt: skip
    try:
        if weights_out_dtype not in WEIGHTS_OUT_DTYPES:
            raise _unknown_weights_out_dtype(weights_out_dtype)
        inputs = (
            positions, index_q, index_q_cos_sin_cache, index_weights, index_weights_softmax_scale,
            index_weights_head_scale,
        )  # fmt: skip
        if _goes_unseen(*inputs):
            return _run_eagerly(
                *inputs, use_fp4, weights_out_dtype, spec.rope_style, spec.rope_at, spec.hadamard, backend
            )
        _check_grad(op_name(use_fp4), *inputs[:4])
        weights_out = torch.empty_like(index_weights, dtype=weights_out_dtype, memory_format=torch.contiguous_format)
        if not use_fp4:
            q_fp8 = torch.empty_like(index_q, dtype=torch.uint8, memory_format=torch.contiguous_format)
            _op_fp8(*inputs, q_fp8, weights_out, spec.rope_style, spec.rope_at, spec.hadamard, backend)
            return q_fp8.view(torch.float8_e4m3fn), weights_out
        tokens, heads, head_dim = index_q.shape
        q_packed = index_q.new_empty(tokens, heads, head_dim // 2, dtype=torch.uint8)
        q_scale = index_q.new_empty(tokens, heads, head_dim // _abi.MX_BLOCK, dtype=torch.uint8)
        _op_mxfp4(*inputs, q_packed, q_scale, weights_out, spec.rope_style, spec.rope_at, spec.hadamard, backend)
        if head_dim == _eager.PACKED_SCALE_HEAD_DIM:
            q_scale = q_scale.view(torch.int32).squeeze(-1)
        return (q_packed, q_scale), weights_out
    except _debug.BadValueError as bad:
        raise ValueError(bad.told(PUBLIC_NAMES)) from None
    except (TypeError, ValueError, AttributeError, RuntimeError):
        tensors = input_tensors(positions, index_q, index_q_cos_sin_cache, index_weights)
        scales = _scales(index_weights_softmax_scale, index_weights_head_scale)
        error = _public_error(op_name(use_fp4), tensors, scales, spec, backend)
        if error is not None:
            raise error from None
        raise


def fused_indexer_q_rope_quant_out(
    positions: Tensor,
    index_q: Tensor,
    index_q_cos_sin_cache: Tensor,
    index_weights: Tensor,
    index_weights_softmax_scale: float,
    index_weights_head_scale: float,
    use_fp4: bool = False,
    weights_out_dtype: torch.dtype = torch.float32,
    *,
    q_out: Tensor,
    weights_out: Tensor,
    q_scale_out: Tensor | None = None,
    spec: IndexerQSpec = DEEPSEEK_V4,
    backend: str | None = None,
) -> None:
    """Do what `fused_indexer_q_rope_quant` does, into buffers of the caller's.

    q_out: (T, H, D) float8_e4m3fn or uint8; with use_fp4 (T, H, D/2) uint8.
    q_scale_out: with use_fp4, and only then: int32 (T, H) where D is 128, or uint8 (T, H, D/32).
    weights_out: (T, H) of weights_out_dtype. All contiguous, and apart in memory from each other and from the inputs.

    Raises as `fused_indexer_q_rope_quant`; then nothing is written.
    """
    if type(index_q) is not Tensor and hasattr(index_q, "device_mesh"):
        from . import _dtensor

        return _dtensor.fused_indexer_q_rope_quant_out(
            positions, index_q, index_q_cos_sin_cache, index_weights, index_weights_softmax_scale,
            index_weights_head_scale, use_fp4, weights_out_dtype,
            q_out=q_out, weights_out=weights_out, q_scale_out=q_scale_out, spec=spec, backend=backend,
        )  # fmt: skip
    try:
        inputs = (
            positions, index_q, index_q_cos_sin_cache, index_weights, index_weights_softmax_scale,
            index_weights_head_scale,
        )  # fmt: skip
        # Bytes first: an error then speaks of what is wrong, and not of a float8 or int32 buffer that is right.
        if q_scale_out is not None and q_scale_out.dtype is torch.int32:
            q_scale_out = q_scale_out.unsqueeze(-1).view(torch.uint8)
        if not use_fp4 and q_out.dtype is torch.float8_e4m3fn:
            q_out = q_out.view(torch.uint8)
        if weights_out.dtype is not weights_out_dtype:
            raise _wrong_weights_out(weights_out.dtype, weights_out_dtype)
        if not use_fp4:
            if q_scale_out is not None:
                raise _unexpected_scales()
            unseen = _goes_unseen(*inputs, q_out, weights_out)
            if not unseen:
                _check_grad("indexer_q_fp8", *inputs[:4], q_out, weights_out)
            run = _run_fp8 if unseen else _op_fp8
            run(*inputs, q_out, weights_out, spec.rope_style, spec.rope_at, spec.hadamard, backend)
            return None
        if q_scale_out is None:
            raise _missing_scales()
        unseen = _goes_unseen(*inputs, q_out, q_scale_out, weights_out)
        if not unseen:
            _check_grad("indexer_q_mxfp4", *inputs[:4], q_out, q_scale_out, weights_out)
        run = _run_mxfp4 if unseen else _op_mxfp4
        run(*inputs, q_out, q_scale_out, weights_out, spec.rope_style, spec.rope_at, spec.hadamard, backend)
        return None
    except _debug.BadValueError as bad:
        raise ValueError(bad.told(PUBLIC_NAMES)) from None
    except (TypeError, ValueError, AttributeError, RuntimeError):
        tensors = input_tensors(positions, index_q, index_q_cos_sin_cache, index_weights)
        outputs = {"q_packed": q_out} if use_fp4 else {"q_fp8": q_out}
        if use_fp4 and q_scale_out is not None:
            outputs["q_scale"] = q_scale_out
        scales = _scales(index_weights_softmax_scale, index_weights_head_scale)
        tensors |= {**outputs, "weights_out": weights_out}
        error = _public_error(op_name(use_fp4), tensors, scales, spec, backend)
        if error is not None:
            raise error from None
        raise


def op_name(use_fp4: bool) -> str:
    """The operation that runs a format."""
    return "indexer_q_mxfp4" if use_fp4 else "indexer_q_fp8"


def input_tensors(positions: Tensor, q: Tensor, cos_sin_cache: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """The inputs of a call by their ABI names."""
    return {"positions": positions, "q": q, "cos_sin_cache": cos_sin_cache, "weights": weights}


def _scales(softmax_scale: Any, head_scale: Any) -> dict[str, Any]:
    return {"index_weights_softmax_scale": softmax_scale, "index_weights_head_scale": head_scale}


def _check_grad(op: str, *tensors: Tensor) -> None:
    """Raise for a derivative that torch.func or a dual level asks for: their tensors reach an op without its marks."""
    if not _is_dynamo_compiling():  # which shows no marks either
        spec = _abi.OPS[op]
        named = {argument.name: tensor for argument, tensor in zip(spec.tensors, tensors, strict=False)}
        _requests.check_grad(spec, named, PUBLIC_NAMES)
        _requests.check_tangents(spec, named, PUBLIC_NAMES)


def _public_error(
    op: str, tensors: Mapping[str, Any], scales: Mapping[str, Any], spec: Any, backend: Any
) -> Exception | None:
    """Make the error that speaks of this module's arguments; None where they are all as they should be."""
    try:
        _requests.check_ahead(_abi.OPS[op], tensors, PUBLIC_NAMES)
        for name, scale in scales.items():
            if not _is_number(scale):
                raise TypeError(
                    _checks.describe_mismatch(name, "a Python float", repr(scale), "pass a number that float() takes.")
                )
        check_spec(spec)
        if not isinstance(backend, str | None):
            raise TypeError(
                _checks.describe_mismatch("backend", "a backend's name or None", repr(backend), "pass its name.")
            )
    except (TypeError, ValueError) as error:
        return error
    return None


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False
    return not isinstance(value, str | bytes)


def _unknown_weights_out_dtype(dtype: object) -> TypeError:
    expected = " or ".join(map(str, WEIGHTS_OUT_DTYPES))
    return TypeError(_checks.describe_mismatch("weights_out_dtype", expected, repr(dtype), "pass one of the two."))


def _wrong_weights_out(actual: torch.dtype, expected: torch.dtype) -> TypeError:
    remedy = "pass the buffer's own dtype as weights_out_dtype."
    return TypeError(_checks.describe_mismatch("weights_out", f"dtype {expected}", str(actual), remedy))


def _unexpected_scales() -> ValueError:
    remedy = "leave it out: FP8 folds the scale into weights_out."
    return ValueError(_checks.describe_mismatch("q_scale_out", "None without use_fp4", "a tensor", remedy))


def _missing_scales() -> TypeError:
    remedy = "allocate one of the two; iq_ops writes the block scales into it."
    expected = "with use_fp4 an int32 (T, H) buffer where D is 128, or a uint8 (T, H, D/32) one"
    return TypeError(_checks.describe_mismatch("q_scale_out", expected, "None", remedy))
