"""The indexer-Q contract in plain PyTorch: the definition of every backend, and a backend that runs anywhere.

Arithmetic is IEEE binary32 with one rounding per operation. Eager PyTorch rounds after every operation, so each line
below is one operation of the contract. Read `_rows` from top to bottom: rotate, round, Hadamard, amax, scale, encode.

Sources: block scales and E2M1 from OCP Microscaling Formats (MX) v1.0; e4m3 from the OFP8 specification; the scale
floors, power-of-two scales and the folding of the FP8 scale into the head weights from DeepSeek's sparse attention.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from . import _abi, _checks

CHUNK_ELEMENTS = 1 << 22  # q elements a pass: about 200 MB of temporaries, whatever T is

FP8_FLOOR, FP8_RECIPROCAL = 1e-4, 1 / 448  # smallest amax; 448 is the largest e4m3fn value
MXFP4_FLOOR, MXFP4_RECIPROCAL = 6 * 2.0**-126, 1 / 6  # 6 is the largest E2M1 value
FP8_NAN = 0x7F
E8M0_NAN = 0xFF
BF16_INF_BITS = 0x7F80
SMALLEST_NORMAL = sys.float_info.min


def indexer_q_fp8(
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
    """Write FP8 codes and scaled head weights, with the row scale folded into the weights.

    positions (T,) int32|int64; q (T, H, D) bfloat16; cos_sin_cache (P, R) float32|bfloat16;
    weights (T, H) bfloat16|float16|float32; q_fp8 (T, H, D) uint8 of e4m3fn codes; weights_out (T, H) float32|bfloat16.
    Raises TypeError for a wrong dtype and ValueError for a wrong shape, stride, device or option;
    RuntimeError under `torch.set_flush_denormal(True)`.
    """
    tensors = {
        "positions": positions, "q": q, "cos_sin_cache": cos_sin_cache, "weights": weights,
        "q_fp8": q_fp8, "weights_out": weights_out,
    }  # fmt: skip
    _checks.check_options(rope_style, rope_at, hadamard)
    _checks.check_call(_abi.OPS["indexer_q_fp8"], tensors)
    _check_subnormals()
    combined = float(weights_softmax_scale) * float(weights_head_scale)  # a NumPy float32 would make it binary32
    with _writing(q_fp8, weights_out):
        for rows in _chunks(q):
            padding, values = _rows(positions[rows], q[rows], cos_sin_cache, rope_style, rope_at, hadamard)
            amax_bits = _amax_bits(values)
            poisoned = amax_bits >= BF16_INF_BITS
            exponent = _scale_exponent(amax_bits, FP8_FLOOR, FP8_RECIPROCAL)
            codes = encode_e4m3(_widen(values) * _power_of_two(254 - exponent)[..., None])
            codes.masked_fill_(poisoned[..., None], FP8_NAN).masked_fill_(padding[:, None, None], 0)
            q_fp8[rows] = codes
            scaled = _combined_weights(weights[rows], combined) * _power_of_two(exponent)
            scaled.masked_fill_(poisoned, torch.nan).masked_fill_(padding[:, None], 0.0)
            weights_out[rows] = scaled.to(weights_out.dtype)


def indexer_q_mxfp4(
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
    """Write packed E2M1 codes, one e8m0 scale byte for each 32 dims, and scaled head weights.

    Inputs as `indexer_q_fp8`; q_packed (T, H, D/2) uint8, the even dim in the low nibble; q_scale (T, H, D/32) uint8;
    weights_out (T, H) float32|bfloat16. A value is code * 2**(scale byte - 127). Raises as `indexer_q_fp8`.
    """
    tensors = {
        "positions": positions, "q": q, "cos_sin_cache": cos_sin_cache, "weights": weights,
        "q_packed": q_packed, "q_scale": q_scale, "weights_out": weights_out,
    }  # fmt: skip
    _checks.check_options(rope_style, rope_at, hadamard)
    _checks.check_call(_abi.OPS["indexer_q_mxfp4"], tensors)
    _check_subnormals()
    combined = float(weights_softmax_scale) * float(weights_head_scale)  # a NumPy float32 would make it binary32
    with _writing(q_packed, q_scale, weights_out):
        for rows in _chunks(q):
            padding, values = _rows(positions[rows], q[rows], cos_sin_cache, rope_style, rope_at, hadamard)
            blocks = values.unflatten(-1, (-1, _abi.MX_BLOCK))
            amax_bits = _amax_bits(blocks)
            poisoned = amax_bits >= BF16_INF_BITS
            exponent = _scale_exponent(amax_bits, MXFP4_FLOOR, MXFP4_RECIPROCAL)
            codes = encode_e2m1(_widen(blocks) * _power_of_two(254 - exponent)[..., None])
            codes.masked_fill_(poisoned[..., None], 0).masked_fill_(padding[:, None, None, None], 0)
            codes = codes.flatten(-2)
            q_packed[rows] = codes[..., 0::2] | codes[..., 1::2] << 4
            scale = exponent.to(torch.uint8).masked_fill_(poisoned, E8M0_NAN).masked_fill_(padding[:, None, None], 0)
            q_scale[rows] = scale
            scaled = _combined_weights(weights[rows], combined).masked_fill_(padding[:, None], 0.0)
            weights_out[rows] = scaled.to(weights_out.dtype)


def encode_e4m3(values: Tensor) -> Tensor:
    """Encode float32 as float8_e4m3fn bytes: nearest even, saturating at 448; NaN becomes 0x7F with its sign."""
    bits = values.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    # Normals keep 3 of 23 mantissa bits: add half of the last kept bit, less one on an even code, and cut 20 bits.
    normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2**-6 the codes count steps of 2**-9: adding 2**14, whose last bit is 2**-9, rounds to that grid.
    step = values.abs() + 2.0**14
    subnormal = step.view(torch.int32) - 0x46800000
    code = torch.where(magnitude < 0x3C800000, subnormal, normal).clamp_(max=0x7E)
    code = torch.where(magnitude > 0x7F800000, FP8_NAN, code)
    return (code | bits >> 24 & 0x80).to(torch.uint8)


def encode_e2m1(values: Tensor) -> Tensor:
    """Encode float32 as E2M1 codes 0 to 15: nearest even, saturating at 6, the sign kept on zero."""
    magnitude = values.abs()
    # Half-way points; a tie goes to the even code, so it counts as passed where the code above it is even.
    code = (magnitude > 0.25).to(torch.uint8)
    code += magnitude >= 0.75
    code += magnitude > 1.25
    code += magnitude >= 1.75
    code += magnitude > 2.5
    code += magnitude >= 3.5
    code += magnitude > 5.0
    return code | torch.signbit(values).to(torch.uint8) << 3


def _check_subnormals() -> None:
    """Raise RuntimeError where this thread flushes subnormals to zero: the contract keeps them."""
    if SMALLEST_NORMAL / 2 == 0:  # Python's floats obey the same bits of the CPU as PyTorch's operators
        raise RuntimeError(
            "The reference keeps subnormal numbers, and this thread flushes them to zero. Remedy: call "
            "torch.set_flush_denormal(False) before; whatever set it can set it again after the call."
        )


def _writing(*outputs: Tensor) -> AbstractContextManager[Any]:
    """Inference mode where an output was made in it: PyTorch lets nobody else write there, though a kernel can."""
    return torch.inference_mode() if any(tensor.is_inference() for tensor in outputs) else nullcontext()


def _chunks(q: Tensor) -> list[slice]:
    tokens, row_elements = q.shape[0], q.shape[1] * q.shape[2]
    step = max(1, CHUNK_ELEMENTS // row_elements)
    return [slice(start, start + step) for start in range(0, tokens, step)]


def _rows(
    positions: Tensor, q: Tensor, cache: Tensor, rope_style: str, rope_at: str, hadamard: bool
) -> tuple[Tensor, Tensor]:
    """Return the padding mask (T,) and the rotated, Hadamard-transformed bf16 values (T, H, D)."""
    cos, sin = _cos_sin(positions, cache)
    head_dim, rope_dim = q.shape[-1], cache.shape[-1]
    start = head_dim - rope_dim if rope_at == "tail" else 0
    values = q.clone(memory_format=torch.contiguous_format)
    rotary = values[..., start : start + rope_dim]
    first, second = (
        (rotary[..., 0::2], rotary[..., 1::2])
        if rope_style == "interleaved"
        else (rotary[..., : rope_dim // 2], rotary[..., rope_dim // 2 :])
    )
    a, b = _widen(first), _widen(second)
    first.copy_(a * cos - b * sin)
    second.copy_(b * cos + a * sin)
    if hadamard:
        values = _hadamard(_widen(values)).to(torch.bfloat16)
    return positions < 0, values


def _cos_sin(positions: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (T, 1, R/2) in float32; NaN where the position is outside the cache."""
    num_positions, rope_dim = cache.shape
    inside = (positions >= 0) & (positions < num_positions)
    if num_positions == 0:
        rows = torch.full((positions.shape[0], rope_dim), torch.nan, device=cache.device)
    else:
        rows = cache[torch.where(inside, positions, 0).long()].to(torch.float32)
        rows = rows.masked_fill(~inside[:, None], torch.nan)
    return rows[:, None, : rope_dim // 2], rows[:, None, rope_dim // 2 :]


def _widen(values: Tensor) -> Tensor:
    return values.to(torch.float32)


def _hadamard(values: Tensor) -> Tensor:
    """Walsh-Hadamard in natural (Sylvester) order over the last dim, strides 1, 2, 4 ..., then times D**-0.5."""
    head_dim = values.shape[-1]
    stride = 1
    while stride < head_dim:
        x, y = values.unflatten(-1, (-1, 2, stride)).unbind(-2)
        values = torch.stack((x + y, x - y), dim=-2).flatten(-3)
        stride *= 2
    return values * torch.tensor(head_dim**-0.5, dtype=torch.float32, device=values.device)


def _amax_bits(values: Tensor) -> Tensor:
    """Bits of the largest bf16 magnitude of the last dim (int32). Inf and NaN are the largest, so they surface."""
    return (values.view(torch.int16).to(torch.int32) & 0x7FFF).amax(-1)


def _scale_exponent(amax_bits: Tensor, floor: float, reciprocal: float) -> Tensor:
    """The biased exponent of the power of two at or above max(amax, floor) * reciprocal (contract, step 5)."""
    amax = (amax_bits << 16).view(torch.float32)
    limits = torch.tensor([floor, reciprocal], dtype=torch.float32, device=amax.device)
    ratio = torch.maximum(amax, limits[0]) * limits[1]
    return (ratio.view(torch.int32) + 0x7FFFFF) >> 23


def _power_of_two(biased_exponent: Tensor) -> Tensor:
    return (biased_exponent << 23).view(torch.float32)


def _combined_weights(weights: Tensor, combined: float) -> Tensor:
    return _widen(weights) * torch.tensor(combined, dtype=torch.float32, device=weights.device)
