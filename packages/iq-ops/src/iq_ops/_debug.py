"""IQ_OPS_CHECK=1: look at the values of every call, at the price of one synchronisation. Off, it costs nothing."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from . import _backends, _checks

Result = TypeVar("Result")

ENABLED = os.environ.get("IQ_OPS_CHECK") == "1"  # read once, when iq_ops is imported, and then wired in


class BadValueError(ValueError):
    """A value that the contract has no use for. It speaks the ABI's names, and `told` those of another signature."""

    def __init__(self, argument: str, expected: str, actual: str, remedy: str) -> None:
        super().__init__(argument, expected, actual, remedy)

    def __str__(self) -> str:
        return self.told({})

    def told(self, names: Mapping[str, str]) -> str:
        """The message; `names` maps an ABI name to the caller's own."""
        argument, expected, actual, remedy = self.args
        return "IQ_OPS_CHECK=1: " + _checks.describe_mismatch(names.get(argument, argument), expected, actual, remedy)


def checking(implementation: Callable[..., Result]) -> Callable[..., Result]:
    """Put `check_values` before what runs an operation; the implementation itself where it is not asked for."""
    if not ENABLED:
        return implementation

    @functools.wraps(implementation)
    def checked(positions: Tensor, q: Tensor, cos_sin_cache: Tensor, *rest: object) -> Result:
        if q.is_cuda and torch.cuda.is_current_stream_capturing():
            _backends.warn_once("iq_ops: IQ_OPS_CHECK=1 checks nothing while a CUDA graph is captured")
        else:
            check_values(positions, q, cos_sin_cache)
        return implementation(positions, q, cos_sin_cache, *rest)

    return checked


def check_values(positions: Tensor, q: Tensor, cos_sin_cache: Tensor) -> None:
    """Raise BadValueError for the first token whose position is past the cache, or whose q or cache row is not finite.

    positions (T,), q (T, H, D), cos_sin_cache (P, R). A negative position marks padding, which may hold anything.
    Tensors of wrong shapes are left to the op's own checks.
    """
    if positions.dim() != 1 or q.dim() != 3 or cos_sin_cache.dim() != 2 or positions.shape[0] != q.shape[0]:
        return
    tokens, num_positions = q.shape[0], cos_sin_cache.shape[0]
    if tokens == 0:
        return
    real = positions >= 0
    outside = positions >= num_positions
    rows_finite = torch.cat((cos_sin_cache.isfinite().all(-1), positions.new_ones(1, dtype=torch.bool)))
    inside = torch.where(real & ~outside, positions, num_positions).long()
    checks = torch.stack((outside, real & ~q.isfinite().flatten(1).all(-1), real & ~rows_finite[inside]))
    token = torch.arange(tokens, device=q.device)
    first = torch.where(checks, token, tokens).amin(1).tolist()  # the one synchronisation
    if first[0] < tokens:
        position = int(positions[first[0]])
        raise BadValueError(
            "positions", f"values below the {num_positions} rows of the cache", f"{position} at token {first[0]}",
            "grow the cache, or mark padding with a negative position.",
        )  # fmt: skip
    if first[1] < tokens:
        head, dim = (~q[first[1]].isfinite()).nonzero()[0].tolist()
        value = float(q[first[1], head, dim])
        raise BadValueError(
            "q", "finite values", f"{value} at token {first[1]}, head {head}, dim {dim}",
            "look at the projection that made q.",
        )  # fmt: skip
    if first[2] < tokens:
        row = int(positions[first[2]])
        raise BadValueError(
            "cos_sin_cache", "finite values", f"NaN or Inf in row {row}, the position of token {first[2]}",
            "look at how the cache was filled.",
        )  # fmt: skip
