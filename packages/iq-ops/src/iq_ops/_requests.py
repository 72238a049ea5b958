"""From tensors to what backends judge: `Request`, checks under the caller's own argument names, memory overlap."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _abi, _checks

MAX_ALIGNMENT = 256


@functools.cache
def target_of(device_type: str, device_index: int | None) -> str:
    """The architecture of a device: "sm_90", "gfx942", or the device type where it has none, as "cpu"."""
    if device_type != "cuda":
        return device_type
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device_index).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(device_index)
    return f"sm_{major}{minor}"


def facts_of(tensor: Tensor) -> _abi.TensorFacts:
    """Describe one tensor."""
    address = tensor.data_ptr()
    alignment = min(address & -address, MAX_ALIGNMENT) if address else MAX_ALIGNMENT
    return _abi.TensorFacts(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.stride(), alignment)


def request_of(
    op: str,
    tensors: Mapping[str, _abi.TensorFacts],
    device: torch.device,
    rope_style: str,
    rope_at: str,
    hadamard: bool,
) -> _abi.Request:
    """Describe one call."""
    index = None if device.type == "cpu" else device.index
    target = target_of(device.type, index)
    return _abi.Request(op, device.type, index, target, tensors, rope_style, rope_at, hadamard)


def check(op: _abi.Op, tensors: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
    """Raise TypeError or ValueError, under the caller's `names`, where the tensors do not fit the operation.

    Beyond `_checks.check_call`: tensors are strided, no input may require grad while grad is recorded, and no output
    may share memory.
    """
    names = names or {}
    check_strided(op, tensors, names)
    _checks.check_call(op, tensors, names)
    check_grad(op, tensors, names)
    if all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors.values()):  # others may have no memory
        spans = {name: (address_of(tensor, names.get(name, name)), extent(tensor)) for name, tensor in tensors.items()}
        check_overlap(op, spans, names)


def check_ahead(op: _abi.Op, tensors: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise what `check` raises, and for tangents, ahead of an op: it would be handed tensors without them."""
    check_strided(op, tensors, names)
    _checks.check_call(op, tensors, names)
    check_tangents(op, tensors, names)  # before memory is looked at, which tensors of torch.func.jvp show none of
    check(op, tensors, names)


def check_strided(op: _abi.Op, tensors: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise ValueError for the first tensor that is sparse, nested or otherwise without strides."""
    for spec in op.tensors:
        tensor = tensors.get(spec.name)
        if isinstance(tensor, Tensor) and (tensor.layout is not torch.strided or tensor.is_nested):
            actual = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
            name = names.get(spec.name, spec.name)
            raise ValueError(
                _checks.describe_mismatch(name, "a dense tensor", actual, f"pass {name} as an ordinary tensor.")
            )


def address_of(tensor: Tensor, name: str) -> int:
    """Return the address of a tensor's first element; ValueError for a wrapper that has none."""
    try:
        return tensor.data_ptr()
    except RuntimeError as error:
        actual = "a wrapper without memory, as torch.func.vmap makes"
        remedy = "call it outside the transform, with the tokens of all batches in one T."
        raise ValueError(_checks.describe_mismatch(name, "a tensor with memory", actual, remedy)) from error


def check_grad(op: _abi.Op, tensors: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise ValueError for the first tensor that requires grad, while grad mode is on.

    Inside `torch.func.grad` and `vjp` what they differentiate by requires it, but not what their ops are handed.
    """
    if not torch.is_grad_enabled():
        return
    for spec in op.tensors:
        tensor = tensors.get(spec.name)
        if tensor is not None and tensor.requires_grad:
            name = names.get(spec.name, spec.name)
            raise _no_derivative(name, "requires_grad=True", f"pass {name}.detach(), or call it under torch.no_grad().")


def check_tangents(op: _abi.Op, tensors: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise ValueError for the first tensor with a tangent of forward-mode AD, as `torch.func.jvp` makes.

    That grad mode is off makes no difference to it; inference mode does.
    """
    if torch.is_inference_mode_enabled():
        return
    for spec in op.tensors:
        tensor = tensors.get(spec.name)
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            name = names.get(spec.name, spec.name)
            raise _no_derivative(name, "one with a tangent of forward-mode AD", f"pass {name}.detach().")


def _no_derivative(name: str, actual: str, remedy: str) -> ValueError:
    expected = "a tensor that needs no gradient"
    return ValueError(_checks.describe_mismatch(name, expected, actual, f"the quantization has none: {remedy}"))


def extent(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last one; 0 where it is empty."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.element_size()


def check_overlap(op: _abi.Op, spans: Mapping[str, tuple[int, int]], names: Mapping[str, str]) -> None:
    """Raise ValueError where an output's bytes meet another tensor's. `spans`: address and extent of each."""
    for spec in op.tensors:
        if not spec.output or spec.name not in spans:
            continue
        start, size = spans[spec.name]
        for other, (other_start, other_size) in spans.items():
            if other == spec.name or not size or not other_size:
                continue
            if start < other_start + other_size and other_start < start + size:
                name, other_name = names.get(spec.name, spec.name), names.get(other, other)
                raise ValueError(
                    _checks.describe_mismatch(
                        name,
                        f"memory of its own, apart from {other_name}",
                        f"{size} bytes that overlap the {other_size} bytes {other_name} spans",
                        f"pass another buffer as {name}.",
                    )
                )


def contiguous_facts(dtype: str, shape: tuple[int, ...], alignment: int = MAX_ALIGNMENT) -> _abi.TensorFacts:
    """Describe a contiguous tensor."""
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return _abi.TensorFacts(dtype, shape, strides, alignment)


def output_facts(
    op: _abi.Op, inputs: Mapping[str, _abi.TensorFacts], weights_out_dtype: str
) -> dict[str, _abi.TensorFacts]:
    """Describe the outputs that would be allocated for these inputs: contiguous and well aligned."""
    tokens, heads, head_dim = inputs["q"].shape
    sizes = {"T": tokens, "H": heads, "D": head_dim}
    facts = {}
    for spec in op.tensors:
        if spec.output:
            shape = tuple(sizes[symbol[0]] // int(symbol[2:] or 1) for symbol in spec.shape)
            dtype = weights_out_dtype if spec.name == "weights_out" else spec.dtypes[0]
            facts[spec.name] = contiguous_facts(dtype, shape)
    return facts
