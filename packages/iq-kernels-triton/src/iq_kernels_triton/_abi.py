"""The byte ABI between iq-ops and the kernel packages: operations, tensors, options, provider messages.

This file is byte-identical in every package of the house (a test says so) and imports the standard library
alone, so that packages of different versions can compare what they speak without importing each other.
An operation's `version` rises whenever an older caller or kernel would misread the newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENTRY_POINT_GROUP = "iq_ops.backends"

ROPE_STYLES = ("interleaved", "neox")
ROPE_PLACES = ("tail", "head")
HEAD_DIMS = (32, 64, 128, 256)
ROPE_DIM_MULTIPLE = 16
MX_BLOCK = 32  # elements that share one e8m0 scale: OCP Microscaling Formats v1.0, section 5.2


@dataclass(frozen=True)
class Tensor:
    """One tensor argument. `shape` is in the symbols T tokens, H heads, D head dim, R rotary dim, P cache rows."""

    name: str
    shape: tuple[str, ...]
    dtypes: tuple[str, ...]
    output: bool = False
    last_dim_contiguous: bool = False  # stride(-1) == 1; every other input stride is free, outputs are contiguous


@dataclass(frozen=True)
class Op:
    """One operation: its tensors in call order. Two Python floats follow the inputs, three options the outputs."""

    name: str
    version: int
    tensors: tuple[Tensor, ...]

    def tensor(self, name: str) -> Tensor:
        """The tensor argument called `name`; KeyError if there is none."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)


SCALARS = ("weights_softmax_scale", "weights_head_scale")
OPTIONS: Mapping[str, tuple[object, ...]] = {
    "rope_style": ROPE_STYLES,
    "rope_at": ROPE_PLACES,
    "hadamard": (False, True),
}

_INPUTS = (
    Tensor("positions", ("T",), ("int32", "int64")),
    Tensor("q", ("T", "H", "D"), ("bfloat16",), last_dim_contiguous=True),
    Tensor("cos_sin_cache", ("P", "R"), ("float32", "bfloat16"), last_dim_contiguous=True),
    Tensor("weights", ("T", "H"), ("bfloat16", "float16", "float32")),
)
_WEIGHTS_OUT = Tensor("weights_out", ("T", "H"), ("float32", "bfloat16"), output=True)

OPS: Mapping[str, Op] = {
    op.name: op
    for op in (
        Op("indexer_q_fp8", 1, (*_INPUTS, Tensor("q_fp8", ("T", "H", "D"), ("uint8",), output=True), _WEIGHTS_OUT)),
        Op(
            "indexer_q_mxfp4",
            1,
            (
                *_INPUTS,
                Tensor("q_packed", ("T", "H", "D/2"), ("uint8",), output=True),
                Tensor("q_scale", ("T", "H", "D/32"), ("uint8",), output=True),
                _WEIGHTS_OUT,
            ),
        ),
    )
}


@dataclass(frozen=True)
class Description:
    """What a provider says of itself. On a GPU the highest `preference` of those that can run a request gets it."""

    backend: str
    distribution: str
    version: str
    preference: int
    abi: Mapping[str, int]


@dataclass(frozen=True)
class TensorFacts:
    """What a kernel may ask of one tensor before it sees it. `alignment`: bytes, the largest power of two up to 256."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int


@dataclass(frozen=True)
class Request:
    """One call, described without tensors: what `why_not` judges. `target` is "sm_90", "gfx942" or "cpu"."""

    op: str
    device_type: str
    device_index: int | None
    target: str
    tensors: Mapping[str, TensorFacts]
    rope_style: str
    rope_at: str
    hadamard: bool


@dataclass(frozen=True)
class Workload:
    """Every call of one op that differs in tokens alone: what `warmup_jobs` compiles for, at every T."""

    op: str
    num_heads: int
    head_dim: int
    rope_dim: int
    positions_dtype: str
    cos_sin_cache_dtype: str
    weights_dtype: str
    weights_out_dtype: str
    rope_style: str
    rope_at: str
    hadamard: bool
    target: str
    device_index: int | None  # None: compile for `target` without a device, into the disk cache
