"""Quantize the inputs of a file through the public function, a range of tokens at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _explain, indexer
from .dumps import Inputs
from .specs import IndexerQSpec

CHUNK_ELEMENTS = 1 << 24  # q elements a call: 32 MiB of bf16 on the device


@dataclass(frozen=True)
class Quantized:
    """The contract's outputs on the CPU under their dump names, and which backend made them on which architecture."""

    tensors: Mapping[str, Tensor]
    backend: str | None
    target: str


def quantize(
    inputs: Inputs, fmt: str, spec: IndexerQSpec, progress: Callable[[int, int], None] | None = None
) -> Quantized:
    """Return the contract's outputs: `q_fp8`, or `q_packed` and `q_scale`, and `weights_out`.

    fmt: "fp8" or "mxfp4". It runs on the current GPU where there is one. progress(tokens done, tokens) is called as it
    goes. Raises what `fused_indexer_q_rope_quant` raises.
    """
    device = best_device()
    num_tokens, num_heads, head_dim = inputs.q.shape
    cache = inputs.cos_sin_cache.to(device)
    step = max(1, CHUNK_ELEMENTS // (num_heads * head_dim))
    parts: list[dict[str, Tensor]] = []
    for start in range(0, max(num_tokens, 1), step):
        rows = slice(start, start + step)
        arguments = (
            inputs.positions[rows].to(device), inputs.q[rows].to(device), cache, inputs.weights[rows].to(device),
            inputs.weights_softmax_scale, inputs.weights_head_scale, fmt == "mxfp4",
        )  # fmt: skip
        codes, weights_out = indexer.fused_indexer_q_rope_quant(*arguments, spec=spec)
        named = {"q_fp8": codes} if isinstance(codes, Tensor) else {"q_packed": codes[0], "q_scale": codes[1]}
        parts.append({name: tensor.cpu() for name, tensor in {**named, "weights_out": weights_out}.items()})
        if progress is not None:
            progress(min(start + step, num_tokens), num_tokens)
    tensors = {name: torch.cat([_bytes(part[name]) for part in parts]).view(parts[0][name].dtype) for name in parts[0]}
    taken = _explain.explain(*arguments, spec=spec)  # after the calls: what failed to compile is passed over here too
    return Quantized(tensors, taken.backend, taken.target)


def best_device() -> torch.device:
    """Return the current GPU, or the CPU where there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _bytes(tensor: Tensor) -> Tensor:
    """A view that torch.cat takes: it has no kernel for float8."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
