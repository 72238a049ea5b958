"""A chain as a model runs it: a matmul writes q, the operation quantizes it, a kernel reads the codes.

The matmul is the projection from DeepSeek-V4's 1536 query ranks to 64 heads of 128 dims. With PDL the operation is
launched while the matmul drains, and the reader while the operation drains; without it each waits for the other's end.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl

from benchmarks import inputs

QUERY_RANK = 1536
BLOCK = 1024
Step = Callable[[], Any]


@triton.jit
def read(codes, sums, BLOCK: tl.constexpr, PDL: tl.constexpr):  # noqa: N803
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0)
    values = tl.load(codes + program * BLOCK + tl.arange(0, BLOCK)).to(tl.int32)
    tl.store(sums + program, tl.sum(values))


def steps(raw: Callable[..., None], shape: inputs.Shape, fmt: str, pdl: bool) -> list[tuple[Step, Step, Step]]:
    """(producer, operation, consumer) of every input set; `pdl` is the consumer's, the operation's is `raw`'s own."""
    width = shape.num_heads * shape.head_dim
    projection = torch.randn(QUERY_RANK, width, device="cuda", dtype=torch.bfloat16) * QUERY_RANK**-0.5
    chain = []
    for arguments in inputs.arguments(shape, fmt):
        q, codes = arguments["q"], arguments["q_fp8" if fmt == "fp8" else "q_packed"]
        hidden = torch.randn(shape.tokens, QUERY_RANK, device="cuda", dtype=torch.bfloat16)
        sums = torch.empty(codes.numel() // BLOCK, device="cuda", dtype=torch.int32)
        producer = functools.partial(torch.mm, hidden, projection, out=q.view(shape.tokens, width))
        options = {"launch_pdl": pdl, "enable_fp_fusion": False}  # the last: Triton 3.9 warns of a default
        consumer = functools.partial(read[(sums.numel(),)], codes, sums, BLOCK=BLOCK, PDL=pdl, **options)
        chain.append((producer, functools.partial(raw, **arguments), consumer))
    return chain


def in_order(*parts: Step) -> Step:
    """One call that makes `parts` one after the other."""

    def run() -> None:
        for part in parts:
            part()

    return run


@contextmanager
def without_pdl(backend: str) -> Iterator[None]:
    """Let a backend's variant choice give variants without PDL, and else the same; forget them afterwards."""
    package = f"iq_kernels_{backend}.indexer_q"
    config, launch = (importlib.import_module(f"{package}.{name}") for name in ("config", "launch"))
    choose = config.schedule

    def schedule(*arguments: Any) -> Any:
        return [(limit, dataclasses.replace(variant, pdl=False)) for limit, variant in choose(*arguments)]

    launch._schedules.clear()
    try:
        with mock.patch.object(config, "schedule", schedule):
            yield
    finally:
        launch._schedules.clear()
