"""The yardstick: what a plain cast of the same q costs, as one elementwise Triton kernel launched with PDL.

`cast8` writes one FP8 byte a value; `cast4` writes half a byte a value, as 2-byte words out of 8-byte words in. Each
releases its dependents, then waits, then loads. The best of several block sizes counts, all with 4 warps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benchmarks import devicetime, inputs

BLOCKS = {"fp8": (512, 1024, 2048, 4096), "mxfp4": (128, 256, 512, 1024, 2048, 4096)}  # in words that are loaded
VALUES_OF_WORD = {"fp8": 1, "mxfp4": 4}


@triton.jit
def cast8(source, target, BLOCK: tl.constexpr):  # noqa: N803
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(source + offsets).to(tl.float32).to(tl.float8e4nv))


@triton.jit
def cast4(source, target, BLOCK: tl.constexpr):  # noqa: N803
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(source + offsets).to(tl.int16))


def launcher(fmt: str, q: Tensor, codes: Tensor, block: int) -> Callable[[], Any]:
    """Return a call of the cast for `fmt` from `q` into the bytes `codes`, whose size `block` must divide."""
    words, rest = divmod(q.numel(), VALUES_OF_WORD[fmt])
    if rest or words % block:
        raise ValueError(f"block: expected a divisor of {q.numel()}/{VALUES_OF_WORD[fmt]} words, got {block}")
    if fmt == "fp8":
        kernel, source, target = cast8, q.view(-1), codes.view(torch.float8_e4m3fn).view(-1)
    else:
        kernel, source, target = cast4, q.view(torch.int64).view(-1), codes.view(torch.int16).view(-1)
    options = {"num_warps": 4, "launch_pdl": True, "enable_fp_fusion": False}  # the last: Triton 3.9 warns of a default
    return functools.partial(kernel[(words // block,)], source, target, BLOCK=block, **options)


@functools.cache
def cast_seconds(fmt: str, shape: inputs.Shape, residency: str) -> float:
    """Seconds of the best cast of the q of `shape`, measured as the kernels are."""
    output = "q_fp8" if fmt == "fp8" else "q_packed"
    sets = inputs.arguments(shape, fmt)
    primer = inputs.evict_l2 if residency == "cold" else None
    words = shape.elements // VALUES_OF_WORD[fmt]
    times = []
    for block in BLOCKS[fmt]:
        if words % block == 0:
            calls = [launcher(fmt, tensors["q"], tensors[output], block) for tensors in sets]  # type: ignore[arg-type]
            times.append(devicetime.measure(devicetime.capture(calls, primer)))
    return min(times)
