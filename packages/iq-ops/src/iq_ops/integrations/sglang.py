"""SGLang: the indexer-query functions of its DeepSeek kernels, by its names, argument order and output shapes.

They need no SGLang; `install` puts them in its place. docs/engines.md says which bits differ.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from iq_ops import _backends, _checks
from iq_ops._eager import PACKED_SCALE_HEAD_DIM
from iq_ops.indexer import fused_indexer_q_rope_quant
from iq_ops.specs import DEEPSEEK_V4_HADAMARD, GLM_5

from ._swap import Swap

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_SWAP = Swap(
    "SGLang",
    "sglang",
    (
        "sglang.kernels.ops.attention.dsv4.elementwise",
        "sglang.jit_kernel.dsv4.elementwise",  # earlier homes of the same functions
        "sglang.jit_kernel.deepseek_v4",
    ),
)


def fused_q_indexer_rope_hadamard_quant(
    q_input: Tensor, weight: Tensor, weight_scale: float, freqs_cis: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """DeepSeek-V4's query in FP8: rotate the tail, Hadamard, quantize, fold the row scale into the weights.

    q_input (T, H, D) bfloat16; weight (T, H) bfloat16, float16 or float32; weight_scale: the product of the softmax and
    the head scale; freqs_cis as `cos_sin_cache` takes it; positions (T,) int32 or int64.
    Returns q_fp8 (T, H, D) float8_e4m3fn and weights_out (T, H, 1) float32. Raises TypeError or ValueError as
    `iq_ops.fused_indexer_q_rope_quant`.
    """
    q_fp8, weights_out = fused_indexer_q_rope_quant(
        positions, q_input, cos_sin_cache(freqs_cis), weight, float(weight_scale), 1.0, spec=DEEPSEEK_V4_HADAMARD
    )
    return cast(Tensor, q_fp8), weights_out.unsqueeze(-1)


def fused_q_indexer_rope_hadamard_fp4_quant(
    q_input: Tensor, weight: Tensor, weight_scale: float, freqs_cis: Tensor, positions: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """DeepSeek-V4's query in MXFP4; arguments as `fused_q_indexer_rope_hadamard_quant`, with D == 128.

    Returns q_fp4 (T, H, 64) int8, the even dim in the low nibble, q_sf (T, H) int32, four scale bytes little-endian,
    and weights_out (T, H, 1) float32.
    """
    if q_input.shape[-1] != PACKED_SCALE_HEAD_DIM:
        remedy = "call iq_ops.fused_indexer_q_rope_quant, whose scales have one byte a block."
        expected = f"a head dim of {PACKED_SCALE_HEAD_DIM}, whose scales fill an int32"
        raise ValueError(_checks.describe_mismatch("q_input", expected, str(q_input.shape[-1]), remedy))
    quantized, weights_out = fused_indexer_q_rope_quant(
        positions, q_input, cos_sin_cache(freqs_cis), weight, float(weight_scale), 1.0, True, spec=DEEPSEEK_V4_HADAMARD
    )
    q_packed, q_scale = quantized
    return (q_packed.view(torch.int8), q_scale), weights_out.unsqueeze(-1)


def fused_q_indexer_rope_first_quant(
    q_input: Tensor, weight: Tensor, weight_scale: float, cos_sin_cache: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """DeepSeek-V3.2's and GLM-5's query in FP8: interleaved pairs of the head rotate, without a Hadamard.

    cos_sin_cache (P, R): a row is R/2 cosines, then R/2 sines, as everywhere in iq_ops. The rest as
    `fused_q_indexer_rope_hadamard_quant`.
    """
    q_fp8, weights_out = fused_indexer_q_rope_quant(
        positions, q_input, cos_sin_cache, weight, float(weight_scale), 1.0, spec=GLM_5
    )
    return cast(Tensor, q_fp8), weights_out.unsqueeze(-1)


_FUNCTIONS = {
    function.__name__: function
    for function in (
        fused_q_indexer_rope_hadamard_quant,
        fused_q_indexer_rope_hadamard_fp4_quant,
        fused_q_indexer_rope_first_quant,
    )
}


def install() -> tuple[str, ...]:
    """Swap SGLang's functions for ours in every module that holds them; return the places, as "module.attribute".

    Call it before the model is built. Functions that this SGLang does not have are left out. Repeating it is harmless.
    Raises ImportError without SGLang or its functions, RuntimeError where one takes other arguments or the GPU
    exchanges float8_e4m3fnuz. Then nothing is swapped.
    """
    return _SWAP.install(_FUNCTIONS)


def uninstall() -> tuple[str, ...]:
    """Put SGLang's functions back everywhere, in modules imported since `install` too; return the places."""
    return _SWAP.uninstall()


@dataclass(frozen=True)
class _Kept:
    """A converted table, and what told its source apart when it was converted."""

    cache: Tensor
    version: int
    pointer: int

    def is_of(self, freqs_cis: Tensor) -> bool:
        return self.version == freqs_cis._version and self.pointer == freqs_cis.data_ptr()


_kept = cast("MutableMapping[Tensor, _Kept]", WeakTensorKeyDictionary())  # by identity; goes when the source goes
_lock = threading.Lock()


def cos_sin_cache(freqs_cis: Tensor) -> Tensor:
    """Return `freqs_cis` as iq_ops reads a cache, converted once and kept as long as `freqs_cis` lives.

    freqs_cis: (P, R/2) complex64, or its real view (P, R) float32 of interleaved (cos, sin) pairs.
    Returns (P, R) float32: R/2 cosines, then R/2 sines. It keeps its memory when `freqs_cis` is written in place; the
    next call converts again, and CUDA graphs that read it see the new values.

    A tensor made under `inference_mode` counts no writes, so it is converted in every call, with one warning. Raises
    TypeError or ValueError for another tensor, RuntimeError while a CUDA graph is captured and nothing is kept yet.
    """
    _check_freqs_cis(freqs_cis)
    if torch.compiler.is_compiling():
        return _halves(freqs_cis)
    if freqs_cis.is_inference():
        _backends.warn_once(
            "iq_ops: freqs_cis was made under torch.inference_mode, where writes are not counted, so it is converted "
            "in every call. Remedy: make it outside, or clone it there"
        )
        return _halves(freqs_cis)
    kept = _kept.get(freqs_cis)
    if kept is not None and kept.is_of(freqs_cis):
        return kept.cache
    with _lock:
        return _convert(freqs_cis)


def _convert(freqs_cis: Tensor) -> Tensor:
    kept = _kept.get(freqs_cis)
    if kept is not None and kept.is_of(freqs_cis):
        return kept.cache
    if freqs_cis.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "freqs_cis is new or was written since it was converted, and a CUDA graph is being captured. Remedy: call "
            "iq_ops.integrations.sglang.cos_sin_cache(freqs_cis) once before the capture"
        )
    with torch.inference_mode(False), torch.no_grad():
        cache = _halves(freqs_cis)
        if kept is not None and (kept.cache.shape, kept.cache.device) == (cache.shape, cache.device):
            _synchronize(freqs_cis)  # whoever still reads the old values, on any stream
            cache = kept.cache.copy_(cache)
        _synchronize(freqs_cis)  # once a table: every stream may read it from here on
    _kept[freqs_cis] = _Kept(cache, freqs_cis._version, freqs_cis.data_ptr())
    return cache


def _halves(freqs_cis: Tensor) -> Tensor:
    pairs = torch.view_as_real(freqs_cis) if freqs_cis.is_complex() else freqs_cis.unflatten(-1, (-1, 2))
    return torch.cat((pairs[..., 0], pairs[..., 1]), dim=-1)


def _synchronize(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def _check_freqs_cis(freqs_cis: Any) -> None:
    if not isinstance(freqs_cis, Tensor) or freqs_cis.dtype not in (torch.complex64, torch.float32):
        actual = str(freqs_cis.dtype) if isinstance(freqs_cis, Tensor) else type(freqs_cis).__name__
        remedy = "pass the complex table, or torch.view_as_real of it, flattened to (P, R)."
        raise TypeError(_checks.describe_mismatch("freqs_cis", "torch.complex64 or torch.float32", actual, remedy))
    if freqs_cis.dim() != 2 or (not freqs_cis.is_complex() and freqs_cis.shape[1] % 2):
        expected = "shape (P, R/2) of complex64, or (P, R) of float32 pairs"
        remedy = "flatten what stands before the last dim, or its pairs."
        raise ValueError(_checks.describe_mismatch("freqs_cis", expected, f"shape {tuple(freqs_cis.shape)}", remedy))
