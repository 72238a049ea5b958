"""The safetensors files of the command line: tensor names, reading with checks, writing.

Names: inputs `positions`, `q`, `cos_sin_cache`, `weights`; outputs `q_fp8` and `weights_out`, or `q_packed`, `q_scale`
and `weights_out`. Metadata (strings, each optional): `weights_softmax_scale`, `weights_head_scale`, `rope_style`,
`rope_at`, `hadamard` ("true" or "false").
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from . import _abi, _checks, specs

INPUTS = ("positions", "q", "cos_sin_cache", "weights")
OUTPUTS = {"fp8": ("q_fp8", "weights_out"), "mxfp4": ("q_packed", "q_scale", "weights_out")}
FP8_SCALE_APART = "q_scale"  # float32 (T, H), only in dumps of engines that do not fold it into the weights

_BYTES = (torch.uint8, torch.int8)
_DTYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "q_fp8": (torch.float8_e4m3fn, *_BYTES),
    "q_packed": (*_BYTES, torch.float4_e2m1fn_x2),
    "q_scale": (torch.int32, *_BYTES, torch.float8_e8m0fnu),
}


class DumpError(ValueError):
    """A file that cannot be used: missing, foreign, truncated, or without the tensors and dtypes it must have."""


@dataclass(frozen=True)
class File:
    """What a safetensors file holds: tensors by name, and its metadata."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class Inputs:
    """The contract's inputs, checked: shapes and dtypes as CONTRACT.md has them."""

    positions: Tensor
    q: Tensor
    cos_sin_cache: Tensor
    weights: Tensor
    weights_softmax_scale: float
    weights_head_scale: float


@dataclass(frozen=True)
class Dump:
    """An engine's inputs and outputs, the outputs as raw bytes.

    codes (T, H, D) or (T, H, D/2) uint8; scale (T, H, D/32) uint8 for MXFP4, (T, H) float32 or None for FP8;
    weights_out (T, H) float32 or bfloat16; spec: the options that the file's metadata names.
    """

    fmt: str
    inputs: Inputs
    codes: Tensor
    scale: Tensor | None
    weights_out: Tensor
    spec: Mapping[str, str | bool] = field(default_factory=dict)


def read(path: Path) -> File:
    """Read a whole safetensors file; DumpError if it is missing, truncated or something else."""
    import safetensors

    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        raise DumpError(f"{path}: no such file" + (" (a folder)." if os.path.isdir(path) else "."))
    try:
        with safetensors.safe_open(path, framework="pt") as handle:
            names = list(handle.keys())
            return File(path, {name: handle.get_tensor(name) for name in names}, handle.metadata() or {})
    except (
        safetensors.SafetensorError,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RuntimeError,
    ) as error:
        size = path.stat().st_size
        if "not fully covered" in str(error) or "incomplete" in str(error).lower():
            why = f"truncated: its header promises more than its {size:,} bytes hold"
        else:
            why = f"no safetensors file, or damaged ({size:,} bytes)"
        raise DumpError(f"{path}: {why}. The reader said: {error}") from error


def read_inputs(
    file: File, softmax_scale: float | None = None, head_scale: float | None = None, model_heads: int | None = None
) -> Inputs:
    """Check the inputs of `file`. The scales: the argument, else the metadata, else D**-0.5 and (heads)**-0.5.

    The heads are `model_heads` if given (a tensor-parallel shard of q has fewer), else q's. Raises DumpError.
    """
    _require(file, INPUTS)
    tensors = {name: file.tensors[name] for name in INPUTS}
    _check(file, "indexer_q_fp8", tensors)  # both formats have the same inputs
    num_heads, head_dim = tensors["q"].shape[1:]
    softmax = _scale(file, "weights_softmax_scale", softmax_scale, head_dim)
    head = _scale(file, "weights_head_scale", head_scale, model_heads or num_heads)
    return Inputs(**tensors, weights_softmax_scale=softmax, weights_head_scale=head)


def read_dump(file: File, inputs: Inputs) -> Dump:
    """Check the outputs of `file` against `inputs` and return them as raw bytes. Raises DumpError."""
    fmt = _format_of(file)
    _require(file, OUTPUTS[fmt])
    tensors = {name: _as_bytes(file, name) for name in OUTPUTS[fmt]}
    scale = tensors.get("q_scale")
    if fmt == "fp8" and FP8_SCALE_APART in file.tensors:
        scale = _fp8_scale(file, inputs)
    _check(file, f"indexer_q_{fmt}", {**{name: getattr(inputs, name) for name in INPUTS}, **tensors})
    codes = tensors["q_fp8" if fmt == "fp8" else "q_packed"]
    return Dump(fmt, inputs, codes, scale, tensors["weights_out"], _spec_of(file))


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file through a temporary one, so that no reader sees half of it. DumpError if it cannot.

    A link is followed. A folder, a device or a pipe is refused: the temporary file would take its place.
    """
    import safetensors.torch

    target = Path(os.path.realpath(path))
    if os.path.exists(target) and not os.path.isfile(target):
        raise DumpError(f"{path}: cannot be written: it is there already, and no regular file.")
    temporary = target.with_name(target.name + ".part")
    try:
        safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, temporary, dict(metadata))
        temporary.replace(target)
    except (safetensors.SafetensorError, OSError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise DumpError(f"{path}: cannot be written: {error}") from error


def merged(outputs: File, inputs: File) -> File:
    """Return one file: the inputs of `inputs`, everything else of `outputs`, whose metadata comes first."""
    tensors = {name: tensor for name, tensor in outputs.tensors.items() if name not in INPUTS}
    taken = {name: tensor for name, tensor in inputs.tensors.items() if name in INPUTS}
    return File(outputs.path, {**tensors, **taken}, {**inputs.metadata, **outputs.metadata})


def check_model(path: Path, inputs: Inputs, model: str) -> None:
    """Raise DumpError where the shapes are not those of a model of `specs.MODELS`, or of a tensor-parallel shard."""
    expected = specs.MODELS[model]
    (_, num_heads, head_dim), rope_dim = inputs.q.shape, inputs.cos_sin_cache.shape[1]
    if (head_dim, rope_dim) != (expected.head_dim, expected.rope_dim) or expected.num_heads % num_heads:
        raise DumpError(
            _checks.describe_mismatch(
                f"{path}: q and cos_sin_cache",
                f"{model}: a divisor of {expected.num_heads} heads, D = {expected.head_dim}, R = {expected.rope_dim}",
                f"{num_heads} heads, D = {head_dim}, R = {rope_dim}",
                f"name the model that these tensors are from: {', '.join(specs.MODELS)}.",
            )
        )


def options_of(spec: specs.IndexerQSpec) -> dict[str, str | bool]:
    """Return the contract's options as `Dump.spec` and `verify` take them."""
    return {"rope_style": spec.rope_style, "rope_at": spec.rope_at, "hadamard": spec.hadamard}


def metadata_of(fmt: str, inputs: Inputs, spec: specs.IndexerQSpec) -> dict[str, str]:
    """Return the metadata of a file of outputs, all that `verify` needs beside the inputs."""
    scales = {"weights_softmax_scale": inputs.weights_softmax_scale, "weights_head_scale": inputs.weights_head_scale}
    options = {name: str(value).lower() for name, value in options_of(spec).items()}
    return {"contract": "1", "format": fmt, **{name: repr(value) for name, value in scales.items()}, **options}


def _require(file: File, names: Iterable[str]) -> None:
    missing = [name for name in names if name not in file.tensors]
    if missing:
        raise DumpError(
            _checks.describe_mismatch(
                f"{file.path}: {', '.join(missing)}",
                f"a tensor of {'this name' if len(missing) == 1 else 'each name'}",
                f"a file that holds {', '.join(sorted(file.tensors)) or 'no tensor'}",
                "dump the tensor under this name; `iq-ops verify --help` lists all of them.",
            )
        )


def _check(file: File, op: str, tensors: Mapping[str, Tensor]) -> None:
    try:
        _checks.check_call(_abi.OPS[op], tensors)
    except (ValueError, TypeError) as error:
        raise DumpError(f"{file.path}: {error}") from error


def _scale(file: File, name: str, given: float | None, size: int) -> float:
    if given is not None:
        return given
    text = file.metadata.get(name)
    if text is None:
        return float(size**-0.5)
    try:
        return float(text)
    except ValueError as error:
        raise DumpError(
            _checks.describe_mismatch(
                f"{file.path}: metadata {name}", "a number", repr(text), "write it as repr(float) does."
            )
        ) from error


def _format_of(file: File) -> str:
    found = [fmt for fmt, names in OUTPUTS.items() if names[0] in file.tensors]
    if len(found) != 1:
        raise DumpError(
            _checks.describe_mismatch(
                f"{file.path}: outputs",
                "either q_fp8 (FP8) or q_packed (MXFP4)",
                f"{'both' if found else 'neither'} among {', '.join(sorted(file.tensors)) or 'no tensor'}",
                "dump the outputs of one call under these names; `iq-ops verify --help` lists all of them.",
            )
        )
    return found[0]


def _as_bytes(file: File, name: str) -> Tensor:
    """The output as the raw ABI has it: bytes for codes and scales, (T, H) for weights."""
    tensor = file.tensors[name]
    if name == "weights_out":
        return tensor.squeeze(-1) if tensor.dim() == 3 and tensor.shape[-1] == 1 else tensor
    allowed = _DTYPES[name]
    if tensor.dtype not in allowed:
        raise DumpError(
            _checks.describe_mismatch(
                f"{file.path}: {name}",
                f"dtype {' or '.join(str(dtype) for dtype in allowed)}",
                str(tensor.dtype),
                "dump the encoded bytes, not decoded values; e4m3fnuz is another format than e4m3fn.",
            )
        )
    if tensor.dtype == torch.int32:
        tensor = tensor.contiguous()[..., None]  # (T, H) words of four scale bytes, little-endian
    raw = tensor.contiguous().view(torch.uint8)
    return raw.flatten(2) if raw.dim() > 3 else raw


def _fp8_scale(file: File, inputs: Inputs) -> Tensor:
    scale, rows = file.tensors[FP8_SCALE_APART], tuple(inputs.q.shape[:2])
    if scale.dtype != torch.float32 or tuple(scale.shape) not in (rows, (*rows, 1)):
        raise DumpError(
            _checks.describe_mismatch(
                f"{file.path}: {FP8_SCALE_APART} beside q_fp8",
                f"float32 of shape (T, H) = {rows}",
                f"{scale.dtype} of shape {tuple(scale.shape)}",
                "dump one scale for each token and head, or leave it out where it is folded into weights_out.",
            )
        )
    return scale.reshape(rows)


def _spec_of(file: File) -> dict[str, str | bool]:
    spec: dict[str, str | bool] = {}
    for name in _abi.OPTIONS:
        text = file.metadata.get(name)
        if text is None:
            continue
        value: str | bool = text.lower() == "true" if name == "hadamard" else text
        if (name == "hadamard" and text.lower() not in ("true", "false")) or value not in _abi.OPTIONS[name]:
            expected = " or ".join(repr(choice) for choice in _abi.OPTIONS[name])
            raise DumpError(
                _checks.describe_mismatch(f"{file.path}: metadata {name}", expected, repr(text), "mend the metadata.")
            )
        spec[name] = value
    return spec
