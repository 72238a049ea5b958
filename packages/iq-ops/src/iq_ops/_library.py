"""`torch.ops.iq_ops.*`: each operation registered with PyTorch, checked and dispatched to a backend once a signature.

The ops mutate the caller's byte buffers and return nothing. They are made with `Library.define` and `impl`, which
cost a fraction of what `torch.library.custom_op` costs a call. CUDA is also the dispatch key of ROCm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _abi, _backends, _checks, _debug, _requests

_INPUTS = (
    "Tensor positions, Tensor q, Tensor cos_sin_cache, Tensor weights, "
    "float weights_softmax_scale, float weights_head_scale"
)
_OPTIONS = "str rope_style='interleaved', str rope_at='tail', bool hadamard=False, str? backend=None"
SCHEMAS = {
    "indexer_q_fp8": f"({_INPUTS}, Tensor(a!) q_fp8, Tensor(b!) weights_out, {_OPTIONS}) -> ()",
    "indexer_q_mxfp4": (
        f"({_INPUTS}, Tensor(a!) q_packed, Tensor(b!) q_scale, Tensor(c!) weights_out, {_OPTIONS}) -> ()"
    ),
}

# A signature that passed the checks once, with what runs its calls and the byte extents of its tensors; those of
# `_eager`, whose outputs are not the caller's, with what is needed to allocate them.
# The key holds all that decides which backend runs: what a provider's `why_not` reads, and what a call leaves open. The
# rest, as that positions has T rows and that outputs are contiguous, every raw function checks itself on every call.
# Overlap of memory depends on addresses, so that it is looked at on every call.
MAX_SIGNATURES = 8192
_is_grad_enabled = torch.is_grad_enabled  # a global look-up, where an attribute would cost twice
signatures: dict[tuple[Any, ...], tuple[Callable[..., None], list[Any]]] = {}  # run(*inputs, *scales, *outputs)


def forget_signatures() -> None:
    """Check and dispatch every signature anew at its next call."""
    signatures.clear()


@_debug.checking
def indexer_q_fp8(
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
    backend: str | None = None,
) -> None:
    """Run `indexer_q_fp8` on the best backend or the one named. A hot path: flat, and each line counted in time."""
    p0, p1, p2, p3 = positions.data_ptr(), q.data_ptr(), cos_sin_cache.data_ptr(), weights.data_ptr()
    p4, p5 = q_fp8.data_ptr(), weights_out.data_ptr()
    key = (
        "indexer_q_fp8",
        positions.dtype, positions.stride(), q.shape, q.stride(), q.get_device(),
        cos_sin_cache.dtype, cos_sin_cache.shape, cos_sin_cache.stride(), weights.dtype, weights.stride(),
        weights_out.dtype, rope_style, rope_at, hadamard, backend,
        _is_grad_enabled()
        and (q.requires_grad or weights.requires_grad or cos_sin_cache.requires_grad or weights_out.requires_grad),
        (p0 | p1 | p2 | p3 | p4 | p5) & 255 and (p0 & 255, p1 & 255, p2 & 255, p3 & 255, p4 & 255, p5 & 255),
    )  # fmt: skip
    entry = signatures.get(key)
    if entry is not None and p0 and p1 and p2 and p3:  # without memory: no tokens, or a zero tensor
        run, (e0, e1, e2, e3, e4, e5) = entry
        end4, end5 = p4 + e4, p5 + e5
        if (
            (p0 >= end4 or p4 >= p0 + e0) and (p0 >= end5 or p5 >= p0 + e0)
            and (p1 >= end4 or p4 >= p1 + e1) and (p1 >= end5 or p5 >= p1 + e1)
            and (p2 >= end4 or p4 >= p2 + e2) and (p2 >= end5 or p5 >= p2 + e2)
            and (p3 >= end4 or p4 >= p3 + e3) and (p3 >= end5 or p5 >= p3 + e3)
            and (p5 >= end4 or p4 >= end5)
        ):  # fmt: skip
            run(positions, q, cos_sin_cache, weights, weights_softmax_scale, weights_head_scale, q_fp8, weights_out)
            return
    tensors = {
        "positions": positions, "q": q, "cos_sin_cache": cos_sin_cache, "weights": weights,
        "q_fp8": q_fp8, "weights_out": weights_out,
    }  # fmt: skip
    scales = (weights_softmax_scale, weights_head_scale)
    found = first_call("indexer_q_fp8", tensors, scales, (rope_style, rope_at, hadamard), backend)
    if found is not None:
        remember(key, found, [_requests.extent(tensor) for tensor in tensors.values()])


@_debug.checking
def indexer_q_mxfp4(
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
    backend: str | None = None,
) -> None:
    """Run `indexer_q_mxfp4` on the best backend or the one named; as `indexer_q_fp8` above."""
    p0, p1, p2, p3 = positions.data_ptr(), q.data_ptr(), cos_sin_cache.data_ptr(), weights.data_ptr()
    p4, p5, p6 = q_packed.data_ptr(), q_scale.data_ptr(), weights_out.data_ptr()
    key = (
        "indexer_q_mxfp4",
        positions.dtype, positions.stride(), q.shape, q.stride(), q.get_device(),
        cos_sin_cache.dtype, cos_sin_cache.shape, cos_sin_cache.stride(), weights.dtype, weights.stride(),
        weights_out.dtype, rope_style, rope_at, hadamard, backend,
        _is_grad_enabled()
        and (q.requires_grad or weights.requires_grad or cos_sin_cache.requires_grad or weights_out.requires_grad),
        (p0 | p1 | p2 | p3 | p4 | p5 | p6) & 255
        and (p0 & 255, p1 & 255, p2 & 255, p3 & 255, p4 & 255, p5 & 255, p6 & 255),
    )  # fmt: skip
    entry = signatures.get(key)
    if entry is not None and p0 and p1 and p2 and p3:  # without memory: no tokens, or a zero tensor
        run, (e0, e1, e2, e3, e4, e5, e6) = entry
        end4, end5, end6 = p4 + e4, p5 + e5, p6 + e6
        if (
            (p0 >= end4 or p4 >= p0 + e0) and (p0 >= end5 or p5 >= p0 + e0) and (p0 >= end6 or p6 >= p0 + e0)
            and (p1 >= end4 or p4 >= p1 + e1) and (p1 >= end5 or p5 >= p1 + e1) and (p1 >= end6 or p6 >= p1 + e1)
            and (p2 >= end4 or p4 >= p2 + e2) and (p2 >= end5 or p5 >= p2 + e2) and (p2 >= end6 or p6 >= p2 + e2)
            and (p3 >= end4 or p4 >= p3 + e3) and (p3 >= end5 or p5 >= p3 + e3) and (p3 >= end6 or p6 >= p3 + e3)
            and (p5 >= end4 or p4 >= end5) and (p6 >= end4 or p4 >= end6) and (p6 >= end5 or p5 >= end6)
        ):  # fmt: skip
            run(
                positions, q, cos_sin_cache, weights, weights_softmax_scale, weights_head_scale,
                q_packed, q_scale, weights_out,
            )  # fmt: skip
            return
    tensors = {
        "positions": positions, "q": q, "cos_sin_cache": cos_sin_cache, "weights": weights,
        "q_packed": q_packed, "q_scale": q_scale, "weights_out": weights_out,
    }  # fmt: skip
    scales = (weights_softmax_scale, weights_head_scale)
    found = first_call("indexer_q_mxfp4", tensors, scales, (rope_style, rope_at, hadamard), backend)
    if found is not None:
        remember(key, found, [_requests.extent(tensor) for tensor in tensors.values()])


def first_call(
    name: str,
    tensors: dict[str, Tensor],
    scales: tuple[float, float],
    options: tuple[str, str, bool],
    backend: str | None,
) -> Callable[..., None] | None:
    """Check a call, run it on the first backend that can, and return what runs its signature there from then on."""
    if any(tensor._is_zerotensor() for tensor in tensors.values()):  # the dispatcher gives it memory, or refuses it
        values = list(tensors.values())
        getattr(torch.ops.iq_ops, name)(*values[:4], *scales, *values[4:], *options, backend)
        return None
    _checks.check_options(*options)
    _requests.check(_abi.OPS[name], tensors)
    facts = {argument: _requests.facts_of(tensor) for argument, tensor in tensors.items()}
    request = _requests.request_of(name, facts, tensors["q"].device, *options)
    inputs = len(tensors) - sum(spec.output for spec in _abi.OPS[name].tensors)
    arguments = {
        **dict(list(tensors.items())[:inputs]),
        **dict(zip(_abi.SCALARS, scales, strict=True)),
        **dict(list(tensors.items())[inputs:]),
        **dict(zip(_abi.OPTIONS, options, strict=True)),
    }
    if not isinstance(backend, str | None):
        raise TypeError(
            _checks.describe_mismatch("backend", "a backend's name or None", repr(backend), "pass its name.")
        )
    forced = backend or _backends.forced_by_environment()

    def attempt(
        backend: _backends.Backend, raw: Callable[..., None], passed_over: Sequence[str]
    ) -> Callable[..., None]:
        if backend.name == "reference" and forced is None and request.device_type != "cpu":
            _backends.warn_of_slow_reference(request, passed_over)
        raw(**arguments)
        return _backends.bound(backend, request) or _by_keyword(raw, tuple(arguments)[: -len(options)], options)

    return _backends.run_first(request, forced, attempt)


def remember(key: tuple[Any, ...], run: Callable[..., None], kept: list[Any]) -> None:
    """Let later calls of a signature find `run` and what is kept with it."""
    if len(signatures) >= MAX_SIGNATURES:
        signatures.clear()
    signatures[key] = run, kept


def _by_keyword(
    raw: Callable[..., None], names: tuple[str, ...], options: tuple[str, str, bool]
) -> Callable[..., None]:
    """Call `raw` by keyword, for a provider without `bind`."""
    chosen = dict(zip(_abi.OPTIONS, options, strict=True))

    def run(*arguments: Any) -> None:
        raw(**dict(zip(names, arguments)), **chosen)  # noqa: B905 - the ops count them

    return run


def _fake(name: str) -> Callable[..., None]:
    """What tracing runs instead: the checks alone, on tensors without memory and sizes that may be symbols."""
    op = _abi.OPS[name]
    last_tensors = [spec.name for spec in op.tensors if spec.output]

    def fake(
        positions: Tensor, q: Tensor, cos_sin_cache: Tensor, weights: Tensor,
        weights_softmax_scale: float, weights_head_scale: float, *rest: Any,
    ) -> None:  # fmt: skip
        inputs = {"positions": positions, "q": q, "cos_sin_cache": cos_sin_cache, "weights": weights}
        tensors = {**inputs, **dict(zip(last_tensors, rest, strict=False))}
        options = dict(zip(_abi.OPTIONS, ("interleaved", "tail", False), strict=True))
        options.update(zip(_abi.OPTIONS, rest[len(last_tensors) :], strict=False))
        _checks.check_options(**options)
        _checks.check_call(op, tensors)
        _requests.check_grad(op, tensors, {})

    return fake


_library = torch.library.Library("iq_ops", "FRAGMENT")
for _name, _implementation in (("indexer_q_fp8", indexer_q_fp8), ("indexer_q_mxfp4", indexer_q_mxfp4)):
    _library.define(_name + SCHEMAS[_name], tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
    for _dispatch_key in ("CPU", "CUDA"):
        _library.impl(_name, _implementation, _dispatch_key)
    torch.library.register_fake(f"iq_ops::{_name}", _fake(_name), lib=_library)

INDEXER_Q_FP8 = torch.ops.iq_ops.indexer_q_fp8.default
INDEXER_Q_MXFP4 = torch.ops.iq_ops.indexer_q_mxfp4.default
