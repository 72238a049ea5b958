"""The raw functions: check, pick the variant, launch on the tensors' current stream.

A signature (shapes and strides but for T, dtypes, options, device) is checked once; after that it is known by its
schedule of kernels. The compiled function itself checks every tensor of every call again. Only where it refuses does
this module find out why, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from iq_kernels_cute import _abi, _checks, cache

from . import config, layout

Kernel = Callable[..., Any]
MAX_SIGNATURES = 4096  # a permuted q has strides that grow with T: past this many, start anew

_current_device = torch.cuda.current_device  # a global look-up, where two attributes would cost on every launch

# By (variant, device index): kernels that have been launched there once, so that a launch loads nothing any more. Each
# makes its device current.
_loaded: dict[tuple[config.Variant, int], Kernel] = {}
# By signature: [tokens up to, kernel or None, variant], in rising order.
_schedules: dict[tuple[Any, ...], list[list[Any]]] = {}


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
    q, cos_sin_cache and the outputs begin, and the rows of q and the cache lie, at multiples of 16 bytes.
    Raises TypeError for a wrong dtype, ValueError for a wrong shape, stride, alignment, device or option, RuntimeError
    for a kernel that is not loaded yet under CUDA graph capture, and `cache.CompileError`.
    """
    _run(
        "indexer_q_fp8", (positions, q, cos_sin_cache, weights),
        float(weights_softmax_scale) * float(weights_head_scale),
        (q_fp8, weights_out), rope_style, rope_at, hadamard,
    )  # fmt: skip


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
    _run(
        "indexer_q_mxfp4", (positions, q, cos_sin_cache, weights),
        float(weights_softmax_scale) * float(weights_head_scale),
        (q_packed, q_scale, weights_out), rope_style, rope_at, hadamard,
    )  # fmt: skip


def warm(variant: config.Variant, device_index: int) -> None:
    """Compile or load `variant`, and launch it once on one padding token, so that no later launch loads anything."""
    if (variant, device_index) in _loaded:
        return
    device, kernel = torch.device("cuda", device_index), _on_device(device_index, cache.get(variant))
    sizes = {"T": 1, "P": 1, "H": variant.num_heads, "D": variant.head_dim, "R": variant.rope_dim}
    sizes |= {"D/2": variant.head_dim // 2, "D/32": variant.head_dim // 32}
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for spec in _abi.OPS[variant.op].tensors:
        dtype = spec.dtypes[0] if len(spec.dtypes) == 1 else getattr(variant, f"{spec.name}_dtype")
        shape = [sizes[symbol] for symbol in spec.shape]
        tensor = torch.full(shape, -1 if spec.name == "positions" else 0, dtype=getattr(torch, dtype), device=device)
        (outputs if spec.output else inputs).append(tensor)
    kernel(*inputs, 1.0, *outputs)
    _loaded[variant, device_index] = kernel


def bound(request: _abi.Request) -> Callable[..., None] | None:
    """The launch of every call with the shapes, strides, dtypes, device and options of `request`, which has run once.

    It takes inputs, both scales (floats) and outputs by position. Nothing is looked up any more; the compiled function
    still checks every tensor of every call, and an error is explained as the raw functions explain it.
    """
    options = request.rope_style, request.rope_at, request.hadamard
    tokens, device_index = request.tensors["q"].shape[0], request.device_index
    if tokens == 0 or device_index is None:
        return None
    workload = _workload(request.op, request.tensors, options, request.target)
    variant = config.choose(workload, tokens, layout.is_dense(request.target, request.tensors))
    if (variant, device_index) not in _loaded:
        return None
    kernel = cache.get(variant)

    def run(
        positions: Tensor, q: Tensor, cos_sin_cache: Tensor, weights: Tensor,
        weights_softmax_scale: float, weights_head_scale: float, *outputs: Tensor,
    ) -> None:  # fmt: skip
        combined = weights_softmax_scale * weights_head_scale
        try:
            if device_index == _current_device():
                kernel(positions, q, cos_sin_cache, weights, combined, *outputs)
                return
            with torch.cuda.device(device_index):
                kernel(positions, q, cos_sin_cache, weights, combined, *outputs)
        except Exception:
            _check(request.op, (positions, q, cos_sin_cache, weights, *outputs), options)
            raise

    return run


def _run(
    op: str,
    inputs: tuple[Tensor, ...],
    combined: float,
    outputs: tuple[Tensor, ...],
    rope_style: str,
    rope_at: str,
    hadamard: bool,
) -> None:
    positions, q, cos_sin_cache, weights = inputs
    options = rope_style, rope_at, hadamard
    try:
        tokens, num_heads, head_dim = q.shape
        key = (
            op, num_heads, head_dim, cos_sin_cache.shape[1], options, q.get_device(), q.data_ptr() & 31,
            positions.dtype, cos_sin_cache.dtype, weights.dtype, outputs[-1].dtype,
            positions.stride(), q.stride(), cos_sin_cache.stride(), weights.stride(),
            q.is_neg() or cos_sin_cache.is_neg() or weights.is_neg() or outputs[-1].is_neg(),
        )  # fmt: skip
        for limit, kernel, _ in _schedules.get(key, ()):
            if tokens <= limit:
                if kernel is None:
                    break
                kernel(positions, q, cos_sin_cache, weights, combined, *outputs)
                return
    except Exception:
        _check(op, (*inputs, *outputs), options)  # says better what is wrong, where it is the caller's
        raise
    _first_run(key, inputs, combined, outputs)


def _first_run(key: tuple[Any, ...], inputs: tuple[Tensor, ...], combined: float, outputs: tuple[Tensor, ...]) -> None:
    """Run a call whose kernel this signature has not launched yet, and remember the kernel."""
    op, options = key[0], key[4]
    facts = _check(op, (*inputs, *outputs), options)
    q = inputs[1]
    tokens, device_index = q.shape[0], q.get_device()
    if tokens == 0:
        return
    schedule = _schedules.get(key)
    if schedule is None:
        target = target_of(device_index)
        workload = _workload(op, facts, options, target)
        steps = config.schedule(workload, layout.is_dense(target, facts))
        schedule = [[0, None, None], *([limit, None, variant] for limit, variant in steps)]
        if len(_schedules) >= MAX_SIGNATURES:
            _schedules.clear()
        _schedules[key] = schedule
    step = next(step for step in schedule if tokens <= step[0])
    variant = step[2]
    if (variant, device_index) not in _loaded:
        with torch.cuda.device(device_index):
            if torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"{op} has a kernel to load for this call, which CUDA graph capture does not allow. "
                    "Call iq_ops.warmup(...) for this workload before the capture; then capture again."
                )
    kernel = _on_device(device_index, cache.get(variant))
    kernel(*inputs, combined, *outputs)
    _loaded[variant, device_index] = step[1] = kernel


def _on_device(device_index: int, kernel: Kernel) -> Kernel:
    """`kernel`, launched with its device current.

    The compiled launcher switches devices too, in a CUDA runtime of its own; this way PyTorch's agrees with it.
    """

    def run(*arguments: Any) -> None:
        if device_index == _current_device():
            kernel(*arguments)
        else:
            with torch.cuda.device(device_index):
                kernel(*arguments)

    return run


def target_of(device_index: int) -> str:
    """The target of a CUDA device: "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device_index)
    return f"sm_{major}{minor}"


def _check(op: str, tensors: tuple[Tensor, ...], options: tuple[Any, Any, Any]) -> dict[str, _abi.TensorFacts]:
    """Raise TypeError or ValueError for a call that no kernel can take; else describe its tensors."""
    _checks.check_options(*options)
    spec = _abi.OPS[op]
    named = {tensor.name: value for tensor, value in zip(spec.tensors, tensors, strict=True)}
    _checks.check_call(spec, named)
    _checks.check_sign(spec, named)
    if named["q"].device.type != "cuda":
        device = str(named["q"].device)
        raise ValueError(
            _checks.describe_mismatch("q", "a tensor on a CUDA device", device, "move the tensors to a GPU.")
        )
    facts = {
        name: _abi.TensorFacts(
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            min(256, tensor.data_ptr() & -tensor.data_ptr() or 256),
        )
        for name, tensor in named.items()
    }
    problem = layout.problem(op, facts)
    if problem is not None:
        raise ValueError(_checks.describe_mismatch(*problem))
    return facts


def _workload(
    op: str, facts: Mapping[str, _abi.TensorFacts], options: tuple[Any, Any, Any], target: str
) -> _abi.Workload:
    _, num_heads, head_dim = facts["q"].shape
    dtypes = {f"{name}_dtype": facts[name].dtype for name in ("positions", "cos_sin_cache", "weights", "weights_out")}
    style, place, hadamard = options
    return _abi.Workload(
        op=op,
        num_heads=num_heads,
        head_dim=head_dim,
        rope_dim=facts["cos_sin_cache"].shape[1],
        rope_style=style,
        rope_at=place,
        hadamard=hadamard,
        target=target,
        device_index=None,
        **dtypes,
    )
