"""Checks of a call against `_abi.py`: each error names argument, expected, actual and remedy.

Byte-identical in every package of the house (a test says so). It reads tensors only through `shape`, `stride()`,
`dtype`, `device` and `is_neg()`, so it imports nothing and accepts fake tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _abi


def describe_mismatch(argument: str, expected: str, actual: str, remedy: str) -> str:
    """The one form of every argument error in the house."""
    return f"{argument}: expected {expected}, got {actual}. Remedy: {remedy}"


def check_options(rope_style: Any, rope_at: Any, hadamard: Any) -> None:
    """Raise ValueError for an unknown rope_style or rope_at, TypeError for a hadamard that is no bool."""
    for name, value in (("rope_style", rope_style), ("rope_at", rope_at)):
        allowed = _abi.OPTIONS[name]
        if not isinstance(value, str) or value not in allowed:
            choices = " or ".join(repr(choice) for choice in allowed)
            raise ValueError(describe_mismatch(name, choices, repr(value), "pass one of the two names."))
    if not isinstance(hadamard, bool):
        raise TypeError(describe_mismatch("hadamard", "True or False", repr(hadamard), "pass a bool."))


def check_call(op: _abi.Op, tensors: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, int]:
    """Check `tensors` (some or all of `op`'s) and return the sizes of T, H, D, P and R.

    `names` maps an ABI name to the name that the caller's own signature uses for it. Raises TypeError for a wrong type
    or dtype, ValueError for a wrong rank, shape, stride or device.
    """
    names = names or {}
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    device = None
    for spec in op.tensors:
        if spec.name not in tensors:
            continue
        tensor, name = tensors[spec.name], names.get(spec.name, spec.name)
        _check_type(spec, tensor, name)
        shape = tensor.shape
        if len(shape) != len(spec.shape):
            raise ValueError(
                describe_mismatch(
                    name,
                    f"rank {len(spec.shape)}, shape {_listed(spec.shape)}",
                    f"rank {len(shape)}, shape {_listed(shape)}",
                    f"reshape it to {_listed(spec.shape)}.",
                )
            )
        if device is None:
            device, device_of = tensor.device, name
        elif tensor.device != device:
            raise ValueError(
                describe_mismatch(
                    name,
                    f"device {device}, where {device_of} is",
                    f"device {tensor.device}",
                    f"move it with {name}.to({str(device)!r}).",
                )
            )
        for axis, symbol in enumerate(spec.shape):
            _bind(sizes, origin, symbol, name, axis, shape, spec.output)
        _check_layout(spec, tensor, name)
    check_sizes(sizes, origin)
    return sizes


def _check_type(spec: _abi.Tensor, tensor: Any, name: str) -> None:
    if not hasattr(tensor, "dtype") or not hasattr(tensor, "stride"):
        raise TypeError(
            describe_mismatch(name, "a torch.Tensor", type(tensor).__name__, "convert it with torch.as_tensor.")
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype in spec.dtypes:
        return
    expected = " or ".join(f"torch.{allowed}" for allowed in spec.dtypes)
    if spec.dtypes == ("uint8",) and dtype in ("float8_e4m3fn", "float8_e8m0fnu"):
        remedy = f"pass {name}.view(torch.uint8), the same bytes without a copy."
    elif spec.output:
        remedy = f"allocate {name} with dtype {expected}."
    elif dtype.startswith("complex") and spec.name == "cos_sin_cache":
        remedy = f"pass torch.cat([{name}.real, {name}.imag], dim=-1).float(), made once."
    elif dtype.startswith("complex"):
        remedy = "pass real numbers."
    else:
        remedy = f"convert it with {name}.to(torch.{spec.dtypes[0]})."
    raise TypeError(describe_mismatch(name, f"dtype {expected}", f"torch.{dtype}", remedy))


def _bind(
    sizes: dict[str, int], origin: dict[str, str], symbol: str, name: str, axis: int, shape: Any, output: bool
) -> None:
    symbol, _, divisor = symbol.partition("/")
    size = shape[axis]
    if not divisor and symbol not in sizes:
        sizes[symbol], origin[symbol] = size, f"{name}.shape[{axis}]"
        return
    expected = sizes[symbol] // int(divisor or 1)
    if size == expected:
        return
    if not output:
        remedy = f"pass {origin[symbol].partition('.')[0]} and {name} of the same {symbol}."
    elif axis == 0 and size > expected:
        remedy = f"pass {name}[:{expected}]."
    else:
        remedy = f"allocate {name} with size {expected} in dim {axis}."
    formula = f"{symbol}/{divisor} = {expected}" if divisor else f"{symbol} = {expected}"
    wanted = f"size {formula} in dim {axis} ({symbol} is {origin[symbol]})"
    raise ValueError(describe_mismatch(name, wanted, f"shape {_listed(shape)}", remedy))


def _check_layout(spec: _abi.Tensor, tensor: Any, name: str) -> None:
    if spec.output and not tensor.is_contiguous():
        raise ValueError(
            describe_mismatch(
                name,
                "a contiguous tensor",
                f"shape {_listed(tensor.shape)} with strides {_listed(tensor.stride())}",
                f"pass a buffer allocated contiguous, as by torch.empty_like({name}, memory_format="
                "torch.contiguous_format).",
            )
        )
    if spec.last_dim_contiguous and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            describe_mismatch(
                name,
                "stride(-1) == 1",
                f"strides {_listed(tensor.stride())}",
                f"pass {name}.contiguous(); only the last dim must be contiguous.",
            )
        )


def check_sign(op: _abi.Op, tensors: Mapping[str, Any]) -> None:
    """Raise ValueError for a tensor whose memory holds its values negated, for a kernel reads and writes memory.

    `z.conj().imag` is such a tensor, no tensor of integers is. PyTorch's own operators mind the sign, and its
    dispatcher makes a plain copy for an op.
    """
    for spec in op.tensors:
        if spec.dtypes[0].endswith(("float16", "float32")) and tensors[spec.name].is_neg():
            expected, actual = "memory that holds its values", "a view of memory that holds them negated"
            remedy = "pass a buffer that is no such view." if spec.output else f"pass {spec.name}.resolve_neg()."
            raise ValueError(describe_mismatch(spec.name, expected, actual, remedy))


def check_sizes(sizes: Mapping[str, int], origin: Mapping[str, str]) -> None:
    """Raise ValueError for sizes of D, H or R that the contract does not have; `origin` names where each came from."""
    if "D" in sizes and sizes["D"] not in _abi.HEAD_DIMS:
        raise ValueError(
            describe_mismatch(
                origin["D"],
                f"a head dim of {', '.join(map(str, _abi.HEAD_DIMS))}",
                str(sizes["D"]),
                "there is none for a model of this head dim: padded dims would be rotated, or mixed in by a Hadamard.",
            )
        )
    if "H" in sizes and sizes["H"] < 1:
        raise ValueError(describe_mismatch(origin["H"], "at least one head", "0", "pass a q with heads."))
    if "R" in sizes:
        rope_dim, multiple = sizes["R"], _abi.ROPE_DIM_MULTIPLE
        head_dim = sizes.get("D", max(_abi.HEAD_DIMS))
        if rope_dim % multiple or not multiple <= rope_dim <= head_dim:
            raise ValueError(
                describe_mismatch(
                    origin["R"],
                    f"a rotary dim that is a multiple of {multiple}, from {multiple} to the head dim {head_dim}",
                    str(rope_dim),
                    "pass a cache whose rows are R/2 cosines, then R/2 sines, with R <= D.",
                )
            )


def _listed(values: Any) -> str:
    return "(" + ", ".join(str(value) for value in values) + (",)" if len(values) == 1 else ")")
