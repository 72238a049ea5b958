"""The ways to make one call, from the raw function to the public one under torch.compile."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

import iq_ops

WAYS = ("raw", "out", "public", "compiled")


def call(way: str, raw: Callable[..., None], arguments: dict[str, Any], fmt: str, backend: str) -> Callable[[], Any]:
    """One of WAYS to make the call of the raw `arguments` on `backend`; `raw` and `out` write into their buffers."""
    if way == "raw":
        return functools.partial(raw, **arguments)
    inputs = (
        arguments["positions"],
        arguments["q"],
        arguments["cos_sin_cache"],
        arguments["weights"],
        arguments["weights_softmax_scale"],
        arguments["weights_head_scale"],
        fmt == "mxfp4",
    )
    if way != "out":
        public = iq_ops.fused_indexer_q_rope_quant
        function = public if way == "public" else torch.compile(public, fullgraph=True)
        return functools.partial(function, *inputs, backend=backend)
    buffers = {"q_out": arguments["q_fp8" if fmt == "fp8" else "q_packed"], "weights_out": arguments["weights_out"]}
    if fmt == "mxfp4":
        buffers["q_scale_out"] = arguments["q_scale"]
    return functools.partial(iq_ops.fused_indexer_q_rope_quant_out, *inputs, **buffers, backend=backend)


def one_token_on_the_cpu(fmt: str, num_heads: int = 64, head_dim: int = 128, rope_dim: int = 64) -> dict[str, Any]:
    """The raw arguments of one DeepSeek-V4 token on the CPU."""
    rows = (1, num_heads)
    codes = {"q_fp8": (*rows, head_dim)} if fmt == "fp8" else {"q_packed": (*rows, head_dim // 2)}
    if fmt == "mxfp4":
        codes["q_scale"] = (*rows, head_dim // 32)
    return {
        "positions": torch.zeros(1, dtype=torch.int64),
        "q": torch.ones(*rows, head_dim, dtype=torch.bfloat16),
        "cos_sin_cache": torch.ones(16, rope_dim),
        "weights": torch.ones(rows, dtype=torch.bfloat16),
        "weights_softmax_scale": 1 / math.sqrt(head_dim),
        "weights_head_scale": 1 / math.sqrt(num_heads),
        **{name: torch.empty(shape, dtype=torch.uint8) for name, shape in codes.items()},
        "weights_out": torch.empty(rows),
    }
