"""What the kernels ask of a tensor's place in memory, beyond the ABI: alignment, row strides, number of rows."""

from __future__ import annotations

from collections.abc import Mapping

from iq_kernels_cute import _abi

from . import config

ALIGNMENT = 16  # bytes: one 128-bit access
WIDE_ALIGNMENT = 32  # one 256-bit access
ITEM_BYTES = {"int32": 4, "int64": 8, "bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1}
VECTORIZED_INPUTS = ("q", "cos_sin_cache")


def problem(op: str, tensors: Mapping[str, _abi.TensorFacts]) -> tuple[str, str, str, str] | None:
    """What keeps a kernel from taking these tensors, as (argument, expected, actual, remedy); None if nothing does."""
    for spec in _abi.OPS[op].tensors:
        facts = tensors[spec.name]
        if not spec.output and spec.name not in VECTORIZED_INPUTS:
            continue
        if facts.alignment < ALIGNMENT:
            actual = f"a multiple of {facts.alignment} bytes only"
            return spec.name, f"an address that is a multiple of {ALIGNMENT} bytes", actual, f"copy {spec.name}."
        for axis, (size, stride) in enumerate(zip(facts.shape[:-1], facts.strides[:-1], strict=True)):
            step = stride * ITEM_BYTES[facts.dtype]
            if size > 1 and step % ALIGNMENT and not spec.output:
                expected = f"a stride in dim {axis} that is a multiple of {ALIGNMENT} bytes"
                return spec.name, expected, f"{step} bytes", f"copy {spec.name}, or pad its rows."
    tokens, num_heads = tensors["q"].shape[:2]
    if tokens * num_heads > config.MAX_ROWS:
        return "q", f"at most {config.MAX_ROWS} rows (T*H)", str(tokens * num_heads), "split the call by tokens."
    return None


def is_dense(target: str, tensors: Mapping[str, _abi.TensorFacts]) -> bool:
    """Whether every input stride is the one that a dense variant has compiled in, and q is aligned for its loads."""
    positions, q, cache, weights = (tensors[name] for name in ("positions", "q", "cos_sin_cache", "weights"))
    num_heads, head_dim = q.shape[1:]
    return (
        q.strides == (num_heads * head_dim, head_dim, 1)
        and weights.strides == (num_heads, 1)
        and positions.strides == (1,)
        and cache.strides == (cache.shape[1], 1)
        and (q.alignment >= WIDE_ALIGNMENT or config.capability_of(target) < config.WIDE_LOADS)
    )
