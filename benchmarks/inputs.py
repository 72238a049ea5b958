"""Rotating input sets on the device: each call of a graph reads tensors that no other call of it touches.

How many sets there are follows the rule n = max(8, min(64, 2e9 / bytes of one call)). From 128 tokens of 64 heads on
they exceed the L2 of an H200 several times; shorter inputs fit, and `cold` cases evict them before each replay.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

NUM_POSITIONS = 100_000
L2_MULTIPLE = 4  # bytes read to evict the L2, in L2 sizes


@dataclass(frozen=True)
class Shape:
    """The sizes of one call: T, H, D, R."""

    tokens: int
    num_heads: int = 64
    head_dim: int = 128
    rope_dim: int = 64

    @property
    def elements(self) -> int:
        """Values of q."""
        return self.tokens * self.num_heads * self.head_dim


def bytes_of_call(shape: Shape, fmt: str) -> int:
    """Bytes a call must move: bf16 q, codes, scales, bf16 weights in, fp32 out, int64 positions, fp32 cos/sin rows."""
    codes = shape.elements if fmt == "fp8" else shape.elements // 2 + shape.elements // 32
    weights = shape.tokens * shape.num_heads * (2 + 4)
    return 2 * shape.elements + codes + weights + shape.tokens * (8 + 4 * shape.rope_dim)


def number_of_sets(shape: Shape, fmt: str) -> int:
    """How many sets a graph rotates over."""
    return max(8, min(64, int(2e9 // bytes_of_call(shape, fmt))))


def arguments(shape: Shape, fmt: str) -> list[dict[str, object]]:
    """The raw keyword arguments of every set, outputs included, options left out."""
    outputs = ("q_fp8",) if fmt == "fp8" else ("q_packed", "q_scale")
    names = ("positions", "q", "cos_sin_cache", "weights", *outputs, "weights_out")
    scales = {"weights_softmax_scale": shape.head_dim**-0.5, "weights_head_scale": shape.num_heads**-0.5}
    chosen = _sets(shape)[: number_of_sets(shape, fmt)]
    return [{**{name: tensors[name] for name in names}, **scales} for tensors in chosen]


@functools.lru_cache(maxsize=1)  # the cases of one shape follow each other; an older shape's gigabytes are let go
def _sets(shape: Shape) -> list[dict[str, Tensor]]:
    count = max(number_of_sets(shape, fmt) for fmt in ("fp8", "mxfp4"))
    return [_one_set(shape, seed) for seed in range(count)]


def _one_set(shape: Shape, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    rows, device = (shape.tokens, shape.num_heads), "cuda"
    bytes_of = functools.partial(torch.empty, dtype=torch.uint8, device=device)
    return {
        "positions": torch.randint(NUM_POSITIONS, (shape.tokens,), generator=generator, device=device),
        "q": torch.randn(*rows, shape.head_dim, generator=generator, device=device, dtype=torch.bfloat16),
        "cos_sin_cache": cos_sin_cache(shape.rope_dim),
        "weights": torch.randn(*rows, generator=generator, device=device, dtype=torch.bfloat16),
        "q_fp8": bytes_of(*rows, shape.head_dim),
        "q_packed": bytes_of(*rows, shape.head_dim // 2),
        "q_scale": bytes_of(*rows, shape.head_dim // 32),
        "weights_out": torch.empty(rows, device=device),
    }


@functools.cache
def cos_sin_cache(rope_dim: int, device: str = "cuda") -> Tensor:
    """The (100k, R) fp32 cache that all sets share, as a model's layers do."""
    frequencies = 10000.0 ** -(torch.arange(0, rope_dim, 2, device=device) / rope_dim)
    angles = torch.outer(torch.arange(NUM_POSITIONS, device=device), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def l2_bytes() -> int:
    """Bytes of the current device's L2."""
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


@functools.cache
def _eviction_buffer() -> Tensor:
    return torch.zeros(L2_MULTIPLE * l2_bytes() // 4, dtype=torch.int32, device="cuda")


def evict_l2() -> None:
    """Read several L2 sizes, which leaves none of the inputs in it and no dirty line to be written back."""
    _eviction_buffer().sum()
