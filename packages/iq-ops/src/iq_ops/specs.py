"""How a model's indexer prepares Q: `IndexerQSpec`, one constant a model, and the table of model shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import _checks


@dataclass(frozen=True)
class IndexerQSpec:
    """The options of contract 1.

    rope_style: "interleaved" rotates dims (2i, 2i+1), "neox" rotates (i, i+R/2) of the rotary part.
    rope_at: "tail" rotates the last R dims, "head" the first R.
    hadamard: apply a Walsh-Hadamard transform after the rotation. It must match what was done to the K cache.
    Raises ValueError or TypeError for any other value.
    """

    rope_style: str = "interleaved"
    rope_at: str = "tail"
    hadamard: bool = False

    def __post_init__(self) -> None:
        _checks.check_options(self.rope_style, self.rope_at, self.hadamard)


def check_spec(spec: object) -> None:
    """Raise TypeError for what is no IndexerQSpec."""
    if not isinstance(spec, IndexerQSpec):
        remedy = "pass one of iq_ops.specs, or an iq_ops.IndexerQSpec(...) of your own."
        raise TypeError(_checks.describe_mismatch("spec", "an IndexerQSpec", repr(spec), remedy))


DEEPSEEK_V4 = IndexerQSpec("interleaved", "tail")
DEEPSEEK_V4_HADAMARD = IndexerQSpec("interleaved", "tail", hadamard=True)
DEEPSEEK_V4_1 = DEEPSEEK_V4  # the same layout, of half the heads
DEEPSEEK_V3_2 = IndexerQSpec("neox", "head")
GLM_5 = IndexerQSpec("interleaved", "head")


@dataclass(frozen=True)
class Model:
    """A model's indexer: H heads (before tensor parallelism divides them), D, R, the formats served, the spec.

    The published softmax scale is head_dim**-0.5 and the head scale num_heads**-0.5, in every model here.
    """

    num_heads: int
    head_dim: int
    rope_dim: int
    formats: tuple[str, ...]
    spec: IndexerQSpec


MODELS: Mapping[str, Model] = {
    "deepseek-v4": Model(64, 128, 64, ("mxfp4", "fp8"), DEEPSEEK_V4),
    "deepseek-v4-hadamard": Model(64, 128, 64, ("mxfp4", "fp8"), DEEPSEEK_V4_HADAMARD),
    "deepseek-v4.1": Model(32, 128, 64, ("mxfp4",), DEEPSEEK_V4_1),
    "deepseek-v3.2": Model(64, 128, 64, ("fp8",), DEEPSEEK_V3_2),
    "glm-5": Model(32, 128, 64, ("fp8",), GLM_5),
}
