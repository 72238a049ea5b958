"""What the files of the command line hold: the contract's tensors, checked, and the metadata beside them.

Names: inputs `positions`, `q`, `cos_sin_cache`, `weights` (or as the public functions have them: `index_q`,
`index_q_cos_sin_cache`, `index_weights`); outputs `q_fp8` and `weights_out`, or `q_packed`, `q_scale`
and `weights_out`. Metadata (strings, each optional): `weights_softmax_scale`, `weights_head_scale`, `rope_style`,
`rope_at`, `hadamard` ("true" or "false").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from . import _abi, _checks, _metadata, specs
from .files import DumpError, File

INPUTS = ("positions", "q", "cos_sin_cache", "weights")
OUTPUTS = {"fp8": ("q_fp8", "weights_out"), "mxfp4": ("q_packed", "q_scale", "weights_out")}
FP8_SCALE_APART = "q_scale"  # float32 (T, H), only in dumps of engines that do not fold it into the weights

_BYTES = (torch.uint8, torch.int8)
_DTYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "q_fp8": (torch.float8_e4m3fn, *_BYTES),
    "q_packed": (*_BYTES, torch.float4_e2m1fn_x2),
    "q_scale": (torch.int32, *_BYTES, torch.float8_e8m0fnu),
}


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


def read_inputs(
    file: File,
    softmax_scale: float | None = None,
    head_scale: float | None = None,
    model_heads: int | None = None,
    outputs: File | None = None,
) -> Inputs:
    """Check the inputs of `file`. The scales: the argument, else the metadata, else D**-0.5 and (heads)**-0.5.

    The heads are `model_heads` if given (a tensor-parallel shard of q has fewer), else q's. outputs: the file of the
    outputs where there are any, `file` itself or another; its metadata comes first. Raises DumpError.
    """
    apart = ""
    if outputs is file and any(names[0] in file.tensors for names in OUTPUTS.values()):
        apart = "where the inputs lie in another file, pass it: --inputs IN.safetensors. Else "
    _require(file, INPUTS, apart)
    tensors = {name: file.tensors[name] for name in INPUTS}
    _check(file, "indexer_q_fp8", tensors)  # both formats have the same inputs
    num_heads, head_dim = tensors["q"].shape[1:]
    sources = (file,) if outputs is None else (outputs, file)
    softmax = _metadata.scale(sources, "weights_softmax_scale", softmax_scale, head_dim)
    head = _metadata.scale(sources, "weights_head_scale", head_scale, model_heads or num_heads)
    return Inputs(**tensors, weights_softmax_scale=softmax, weights_head_scale=head)


def read_dump(file: File, inputs: Inputs, source: File | None = None) -> Dump:
    """Check the outputs of `file` against `inputs` and return them as raw bytes. Raises DumpError.

    source: the file that `inputs` were read from, if another. The metadata of `file` comes first.
    """
    source = source or file
    fmt = _format_of(file)
    _require(file, OUTPUTS[fmt])
    tensors = {name: _as_bytes(file, name) for name in OUTPUTS[fmt]}
    scale = tensors.get("q_scale")
    if fmt == "fp8" and FP8_SCALE_APART in file.tensors:
        scale = _fp8_scale(file, inputs)
    _check(file, f"indexer_q_{fmt}", {**{name: getattr(inputs, name) for name in INPUTS}, **tensors}, source)
    codes = tensors["q_fp8" if fmt == "fp8" else "q_packed"]
    options = {**_metadata.options_in(source), **_metadata.options_in(file)}
    return Dump(fmt, inputs, codes, scale, tensors["weights_out"], options)


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
                f"name the model that these tensors are from: {', '.join(specs.MODELS)}; or none, and its layout by "
                "--rope-style, --rope-at and --hadamard.",
            )
        )


def _require(file: File, names: Iterable[str], before: str = "") -> None:
    missing = [name for name in names if name not in file.tensors]
    if missing:
        raise DumpError(
            _checks.describe_mismatch(
                f"{file.path}: {', '.join(missing)}",
                f"a tensor of {'this name' if len(missing) == 1 else 'each name'}",
                f"a file that holds {', '.join(sorted(file.tensors)) or 'no tensor'}",
                f"{before}dump the tensor under this name; `iq-ops verify --help` lists all of them.",
            )
        )


def _check(file: File, op: str, tensors: Mapping[str, Tensor], source: File | None = None) -> None:
    """Raise DumpError, of `file`, for tensors that the op does not take; the inputs are those of `source` if given."""
    source = source or file
    try:
        _checks.check_call(_abi.OPS[op], tensors, source.aliases)
    except (ValueError, TypeError) as error:
        said, mark, remedy = str(error).partition(" Remedy: ")
        if ": expected size " in said:  # the remedy of a call, another slice or buffer, would mend no file
            where = "" if source is file else f", and the inputs are those of {source.path}"
            remedy = f"outputs and inputs must be of one call{where}: dump all of them from the same one."
        raise DumpError(f"{file.path}: {said}{mark}{remedy}") from error


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
