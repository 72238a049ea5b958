"""The arithmetic of each convention in `conventions.py`: what an engine of that convention writes for finite rows.

The contract is defined by `reference.py` alone; a test holds these formulas to it, byte for byte, for `Convention()`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _abi, reference
from .conventions import CONTRACT_FLOOR, Convention


@dataclass(frozen=True)
class Rows:
    """Rows (token, head) as a batch of N, each with what the formulas need.

    positions (N,) int64 inside the cache; q (N, D) bfloat16; cos_sin_cache (P, R); weights (N,).
    """

    positions: Tensor
    q: Tensor
    cos_sin_cache: Tensor
    weights: Tensor
    weights_softmax_scale: float
    weights_head_scale: float


def values(rows: Rows, convention: Convention) -> Tensor:
    """Return what `convention` quantizes: the rotated, perhaps Hadamard-transformed values, (N, D) float32."""
    head_dim, rope_dim = rows.q.shape[-1], rows.cos_sin_cache.shape[-1]
    out = rows.q.to(torch.float32)
    if convention.rotation != "skipped":
        start = head_dim - rope_dim if convention.rope_at == "tail" else 0
        rotary = out[:, start : start + rope_dim]
        first, second = (
            (rotary[:, 0::2], rotary[:, 1::2])
            if convention.rope_style == "interleaved"
            else (rotary[:, : rope_dim // 2], rotary[:, rope_dim // 2 :])
        )
        cos, sin = _cos_sin(rows, convention.rotation)
        turned = _ROTATIONS[convention.arithmetic](first.clone(), second.clone(), cos, sin)
        first.copy_(turned[0])
        second.copy_(turned[1])
        if convention.rotated == "bf16":
            out = _to_bf16(out)
    if convention.hadamard != "none":
        out = _hadamard(out, descending=convention.hadamard == "descending")
        if convention.transformed == "bf16":
            out = _to_bf16(out)
    return out


def codes_and_scale(quantized: Tensor, convention: Convention, fmt: str) -> tuple[Tensor, Tensor]:
    """Encode what `values` returned.

    FP8: codes (N, D) uint8 and scale (N,) float32. MXFP4: packed codes (N, D/2) uint8 and scale bytes (N, D/32) uint8.
    """
    if fmt == "fp8":
        amax = quantized.abs().amax(-1).clamp_(min=_floor(convention.floor, fmt))
        scaled, scale = _FP8_SCALES[convention.scale](quantized, amax[:, None])
        return reference.encode_e4m3(scaled), scale[:, 0]
    blocks = quantized.unflatten(-1, (-1, _abi.MX_BLOCK))
    amax = blocks.abs().amax(-1).clamp_(min=_floor(convention.floor, fmt))
    exponent = _exponent_up(amax, reference.MXFP4_RECIPROCAL)
    if convention.scale == "ocp floor":
        exponent = _exponent_floor(amax, 2)
    codes = _encode_e2m1(blocks * _power_of_two(254 - exponent)[..., None], convention).flatten(-2)
    low, high = codes[:, 0::2], codes[:, 1::2]
    if convention.nibbles == "even high":
        low, high = high, low
    scale = exponent.to(torch.uint8)
    if convention.scale_bytes == "big" and scale.shape[-1] == 4:  # what dumps keep in one int32
        scale = scale.flip(-1)
    return low | high << 4, scale


def weights_out(rows: Rows, convention: Convention, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the head weights (N,) of `dtype`. `scale` (N,) float32 is FP8's row scale; None for MXFP4."""
    one = torch.ones((), dtype=torch.float32)
    softmax, head = (_fp32(value) for value in (rows.weights_softmax_scale, rows.weights_head_scale))
    combined = _fp32(rows.weights_softmax_scale * rows.weights_head_scale)
    formula = _WEIGHTS[convention.weights]
    return formula(rows.weights.to(torch.float32), one if scale is None else scale, softmax, head, combined).to(dtype)


def _fp32(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _to_bf16(tensor: Tensor) -> Tensor:
    """Round to bf16, nearest even, and widen again."""
    return tensor.to(torch.bfloat16).to(torch.float32)


def _cos_sin(rows: Rows, rotation: str) -> tuple[Tensor, Tensor]:
    shift = {"previous": -1, "next": 1}.get(rotation, 0)
    num_positions, rope_dim = rows.cos_sin_cache.shape
    cache = rows.cos_sin_cache[(rows.positions + shift).clamp(0, num_positions - 1)].to(torch.float32)
    if rotation == "bf16 cache":
        cache = _to_bf16(cache)
    if rotation == "pairs":
        return cache[:, 0::2], cache[:, 1::2]
    first, second = cache[:, : rope_dim // 2], cache[:, rope_dim // 2 :]
    if rotation == "sin first":
        return second, first
    return first, -second if rotation == "inverse" else second


def _fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """x*y + z with one rounding to fp32.

    The product of two fp32 is exact in fp64. Rounding the fp64 sum to odd, then to fp32, is innocuous double rounding
    (Boldo and Melquiond, 2008), as 53 >= 2 * 24 + 2.
    """
    product, addend = x.double() * y.double(), z.double()
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)  # Knuth's TwoSum: product + addend == total + error
    even = (total.view(torch.int64) & 1) == 0
    away = torch.nextafter(total, torch.copysign(torch.full_like(total, torch.inf), error))
    return torch.where((error != 0) & even, away, total).float()


_Rotation = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
_ROTATIONS: Mapping[str, _Rotation] = {
    "fp32": lambda a, b, cos, sin: (a * cos - b * sin, b * cos + a * sin),
    "fma cos cos": lambda a, b, cos, sin: (_fma(a, cos, -(b * sin)), _fma(b, cos, a * sin)),
    "fma cos sin": lambda a, b, cos, sin: (_fma(a, cos, -(b * sin)), _fma(a, sin, b * cos)),
    "fma sin cos": lambda a, b, cos, sin: (_fma(-b, sin, a * cos), _fma(b, cos, a * sin)),
    "fma sin sin": lambda a, b, cos, sin: (_fma(-b, sin, a * cos), _fma(a, sin, b * cos)),
    "bf16": lambda a, b, cos, sin: (
        _to_bf16(_to_bf16(a * _to_bf16(cos)) - _to_bf16(b * _to_bf16(sin))),
        _to_bf16(_to_bf16(b * _to_bf16(cos)) + _to_bf16(a * _to_bf16(sin))),
    ),
}


def _hadamard(tensor: Tensor, *, descending: bool) -> Tensor:
    """Walsh-Hadamard over the last dim in fp32, then times D**-0.5. The order of the strides changes last bits only."""
    head_dim = tensor.shape[-1]
    strides = [1 << step for step in range(head_dim.bit_length() - 1)]
    for stride in reversed(strides) if descending else strides:
        x, y = tensor.unflatten(-1, (-1, 2, stride)).unbind(-2)
        tensor = torch.stack((x + y, x - y), dim=-2).flatten(-3)
    return tensor * _fp32(head_dim**-0.5)


def _floor(name: str, fmt: str) -> float:
    if name == CONTRACT_FLOOR:
        return reference.FP8_FLOOR if fmt == "fp8" else reference.MXFP4_FLOOR
    return 448 * 2.0**-126 if name == "tiny" else float(name)


def _exponent_up(amax: Tensor, reciprocal: float) -> Tensor:
    return ((amax * _fp32(reciprocal)).view(torch.int32) + 0x7FFFFF) >> 23


def _exponent_floor(amax: Tensor, largest_exponent: int) -> Tensor:
    return ((amax.view(torch.int32) >> 23) - largest_exponent).clamp_(min=0)


def _power_of_two(biased_exponent: Tensor) -> Tensor:
    return (biased_exponent << 23).view(torch.float32)


def _fp8_by_exponent(v: Tensor, exponent: Tensor) -> tuple[Tensor, Tensor]:
    return v * _power_of_two(254 - exponent), _power_of_two(exponent)


# (values, amax) -> (values in units of the scale, scale)
_FP8_SCALES: Mapping[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "power of two": lambda v, a: _fp8_by_exponent(v, _exponent_up(a, reference.FP8_RECIPROCAL)),
    "ocp floor": lambda v, a: _fp8_by_exponent(v, _exponent_floor(a, 8)),
    "exact a/m v/s": lambda v, a: (v / (a / 448), a / 448),
    "exact a*r v/s": lambda v, a: (v / (a * _fp32(1 / 448)), a * _fp32(1 / 448)),
    "exact a/m v*i": lambda v, a: (v * (1 / (a / 448)), a / 448),
    "exact a*r v*i": lambda v, a: (v * (1 / (a * _fp32(1 / 448))), a * _fp32(1 / 448)),
    "exact a/m v*m/a": lambda v, a: (v * (448 / a), a / 448),
}


def _encode_e2m1(scaled: Tensor, convention: Convention) -> Tensor:
    if convention.ties == "even":
        codes = reference.encode_e2m1(scaled)
    else:
        passed = torch.gt if convention.ties == "toward zero" else torch.ge
        magnitude = scaled.abs()
        codes = torch.signbit(scaled).to(torch.uint8) << 3
        for halfway in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0):
            codes = codes + passed(magnitude, halfway)
    return codes.masked_fill(codes == 8, 0) if convention.zero == "unsigned" else codes


# (weight, FP8 row scale or 1, softmax scale, head scale, their product) -> head weight; all fp32
_WEIGHTS: Mapping[str, Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "combined": lambda w, scale, softmax, head, combined: (w * combined) * scale,
    "scale first": lambda w, scale, softmax, head, combined: (w * scale) * combined,
    "scaled constant": lambda w, scale, softmax, head, combined: w * (combined * scale),
    "combined fp32": lambda w, scale, softmax, head, combined: (w * (softmax * head)) * scale,
    "sequence": lambda w, scale, softmax, head, combined: ((w * scale) * softmax) * head,
    "sequence, scale last": lambda w, scale, softmax, head, combined: ((w * softmax) * head) * scale,
    "head first": lambda w, scale, softmax, head, combined: ((w * head) * scale) * softmax,
    "head first bf16": lambda w, scale, softmax, head, combined: (_to_bf16(w * head) * scale) * softmax,
    "sequence bf16": lambda w, scale, softmax, head, combined: _to_bf16(_to_bf16(w * softmax) * head) * scale,
    "scale twice": lambda w, scale, softmax, head, combined: ((w * combined) * scale) * scale,
    "apart": lambda w, scale, softmax, head, combined: w * combined,
    "apart, sequence": lambda w, scale, softmax, head, combined: (w * softmax) * head,
    "scale only": lambda w, scale, softmax, head, combined: w * scale,
    "untouched": lambda w, scale, softmax, head, combined: w,
}
