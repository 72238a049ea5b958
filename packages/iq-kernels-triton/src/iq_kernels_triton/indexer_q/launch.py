"""The raw functions: validate, choose the variant, launch on the current stream of the tensors' device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from iq_kernels_triton import _abi, _checks

from . import compiling, config

MAX_PLANS = 4096  # signatures remembered; past them the memory starts anew


@dataclass
class _Bound:
    """A variant bound to one signature. `run` launches it on the current stream; None until it is compiled."""

    variant: config.Variant
    programs: int
    trailing: tuple[int | None, ...]  # the arguments after the pointers and the scale; constants are None
    run: Callable[..., None] | None = None


@dataclass(frozen=True)
class _Plan:
    """What a call's shapes, strides, dtypes and options decide, checked once."""

    device: torch.device
    tokens: int
    aligned: _Bound  # `unaligned` again where a stride rules alignment out
    unaligned: _Bound


_plans: dict[tuple[object, ...], _Plan] = {}


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
    """Rotate and quantize q to FP8 codes in `q_fp8`, and write scaled head weights to `weights_out`.

    positions (T,) int32|int64; q (T, H, D) bfloat16 with stride(-1) == 1; cos_sin_cache (P, R) float32|bfloat16, R/2
    cosines then R/2 sines a row; weights (T, H) bfloat16|float16|float32; q_fp8 (T, H, D) uint8 of e4m3fn codes;
    weights_out (T, H) float32|bfloat16, with the row's power-of-two scale folded in.

    Raises TypeError for a wrong dtype, ValueError for a wrong shape, stride, device or option, RuntimeError for a call
    under CUDA-graph capture that would have to compile, CompileError when compiling fails.
    """
    _launch(
        "indexer_q_fp8",
        (positions, q, cos_sin_cache, weights, q_fp8, weights_out),
        float(weights_softmax_scale) * float(weights_head_scale),
        (rope_style, rope_at, hadamard),
    )


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
    """Rotate and quantize q to MXFP4 in `q_packed` and `q_scale`, and write scaled head weights to `weights_out`.

    Inputs as `indexer_q_fp8`; q_packed (T, H, D/2) uint8, the even dim in the low nibble; q_scale (T, H, D/32) uint8,
    one e8m0 byte for each 32 dims: a value is code * 2**(byte - 127). Raises as `indexer_q_fp8`.
    """
    _launch(
        "indexer_q_mxfp4",
        (positions, q, cos_sin_cache, weights, q_packed, q_scale, weights_out),
        float(weights_softmax_scale) * float(weights_head_scale),
        (rope_style, rope_at, hadamard),
    )


def target_of(device: torch.device) -> str:
    """Return the target of a device: "sm_90", "gfx942" or "cpu"."""
    if device.type != "cuda":
        return device.type
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _launch(op: str, tensors: tuple[Tensor, ...], combined_scale: float, rope: tuple[str, str, bool]) -> None:
    key: tuple[object, ...] | None
    try:
        key = (
            op, *rope, *[(t.dtype, t.shape, t.stride(), t.device) for t in tensors],
            tensors[1].is_neg() or tensors[2].is_neg() or tensors[3].is_neg() or tensors[-1].is_neg(),
        )  # fmt: skip
        plan = _plans.get(key)
    except (AttributeError, TypeError):  # not a tensor, or an unhashable option: the checks say which
        key = plan = None
    if plan is None:
        plan = _plan(op, tensors, rope)
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        if key is not None:
            _plans[key] = plan
    if plan.tokens == 0:
        return
    pointers = [tensor.data_ptr() for tensor in tensors]
    bound = plan.aligned if _aligned(pointers) else plan.unaligned
    if compiling.INTERPRETED:
        _interpret(bound, tensors, combined_scale)
        return
    index = plan.device.index
    if torch.cuda.current_device() == index:
        _run(bound, index, pointers, combined_scale)
    else:
        with torch.cuda.device(index):
            _run(bound, index, pointers, combined_scale)


def _run(bound: _Bound, device_index: int, pointers: list[int], combined_scale: float) -> None:
    if bound.run is None:
        bound.run = _kernel(bound.variant, device_index)[(bound.programs, 1, 1)]
    bound.run(*pointers, combined_scale, *bound.trailing)


def _kernel(variant: config.Variant, device_index: int) -> Any:
    kernel = compiling.compiled(variant, device_index)
    if kernel is not None:
        return kernel
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{variant.op}: this call would compile a kernel ({variant.label}) while a CUDA graph is being "
            "captured. Remedy: call iq_ops.warmup(...) for this shape, or run the call once, before the capture."
        )
    return compiling.compile_variant(variant, device_index)


def _interpret(bound: _Bound, tensors: tuple[Tensor, ...], combined_scale: float) -> None:
    import numpy  # what the interpreter needs, a GPU does not

    function = compiling.FUNCTIONS[bound.variant.op]
    constants = {name: value for name, value in bound.variant.constants if name.isupper()}
    arguments = bound.trailing[: len(bound.trailing) - len(constants)]
    with numpy.errstate(all="ignore"):  # the interpreter computes in NumPy, and NaN and Inf are ordinary inputs here
        function[(bound.programs, 1, 1)](*tensors, combined_scale, *arguments, **constants)


def _aligned(pointers: list[int]) -> bool:
    # positions, weights and weights_out are read and written element by element at any alignment.
    bits = pointers[1] | pointers[2]
    for pointer in pointers[4:-1]:
        bits |= pointer
    return bits % config.ALIGNMENT == 0


def _plan(op: str, tensors: tuple[Any, ...], rope: tuple[str, str, bool]) -> _Plan:
    rope_style, rope_at, hadamard = rope
    _checks.check_options(rope_style, rope_at, hadamard)
    named = {spec.name: tensor for spec, tensor in zip(_abi.OPS[op].tensors, tensors, strict=True)}
    sizes = _checks.check_call(_abi.OPS[op], named)
    _checks.check_sign(_abi.OPS[op], named)
    positions, q, cache, weights = tensors[:4]
    device = q.device
    _check_device(device)
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    workload = _abi.Workload(
        op=op,
        num_heads=sizes["H"],
        head_dim=sizes["D"],
        rope_dim=sizes["R"],
        positions_dtype=dtypes[0],
        cos_sin_cache_dtype=dtypes[2],
        weights_dtype=dtypes[3],
        weights_out_dtype=dtypes[-1],
        rope_style=rope_style,
        rope_at=rope_at,
        hadamard=hadamard,
        target=target_of(device),
        device_index=device.index,
    )
    tokens = sizes["T"]
    q_strides, cache_stride = _strides(q)[:2], _strides(cache)[0]
    integers = (tokens, sizes["P"], *_strides(positions), *q_strides, cache_stride, *_strides(weights))

    def bind(layout: str) -> _Bound:
        variant = config.choose(workload, layout, tokens)
        constants = sum(name.isupper() for name, _ in variant.constants)
        return _Bound(variant, config.programs(variant, tokens), (*integers, *(None,) * constants))

    unaligned = bind(config.UNALIGNED)
    if q.is_contiguous() and (sizes["P"] <= 1 or cache_stride == sizes["R"]):
        return _Plan(device, tokens, bind(config.CONTIGUOUS), unaligned)
    bytes_apart = (*(stride * q.element_size() for stride in q_strides), cache_stride * cache.element_size())
    aligned = not any(stride % config.ALIGNMENT for stride in bytes_apart)
    return _Plan(device, tokens, bind(config.STRIDED) if aligned else unaligned, unaligned)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides in elements; 0 where a dim of size 1 makes its stride meaningless."""
    return tuple(stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _check_device(device: torch.device) -> None:
    wanted = "cpu" if compiling.INTERPRETED else "cuda"
    if device.type == wanted:
        return
    if compiling.INTERPRETED:
        remedy = "unset TRITON_INTERPRET before triton is imported, or pass CPU tensors."
    else:
        remedy = "move the tensors to a GPU, or set TRITON_INTERPRET=1 before triton is imported."
    raise ValueError(_checks.describe_mismatch("q", f"a tensor on a {wanted} device", f"device {device}", remedy))
