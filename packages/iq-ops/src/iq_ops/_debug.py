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
    def checked(positions: Tensor, q: Tensor, cos_sin_cache: Tensor, weights: Tensor, *rest: object) -> Result:
        if q.is_cuda and torch.cuda.is_current_stream_capturing():
            _backends.warn_once("iq_ops: IQ_OPS_CHECK=1 checks nothing while a CUDA graph is captured")
        else:
            check_values(positions, q, cos_sin_cache, weights)
        return implementation(positions, q, cos_sin_cache, weights, *rest)

    return checked


def check_values(positions: Tensor, q: Tensor, cos_sin_cache: Tensor, weights: Tensor) -> None:
    """Raise BadValueError for the first token that brings a value of no use, with what to look at.

    positions (T,), q (T, H, D), cos_sin_cache (P, R), weights (T, H). Of no use: a position past the cache, NaN or Inf
    in q, in weights or in the token's cache row, and a row of (cos, sin) pairs in place of halves. A negative position
    marks padding, which may hold anything. Tensors of wrong shapes are left to the op's own checks.
    """
    ranks = (positions.dim(), q.dim(), cos_sin_cache.dim(), weights.dim())
    if ranks != (1, 3, 2, 2) or not positions.shape[0] == q.shape[0] == weights.shape[0]:
        return
    tokens, (num_positions, rope_dim) = q.shape[0], cos_sin_cache.shape
    if tokens == 0 or not rope_dim or rope_dim % 2 or cos_sin_cache.is_complex():
        return
    real, outside = positions >= 0, positions >= num_positions
    inside = real & ~outside
    rows = q.new_zeros(tokens, rope_dim, dtype=torch.float32)
    if num_positions:
        rows = cos_sin_cache[torch.where(inside, positions, 0).long()].float()
    bad_q, bad_weights = real & ~q.isfinite().flatten(1).all(-1), real & ~weights.isfinite().all(-1)
    bad_row, pairs = inside & ~rows.isfinite().all(-1), inside & _are_pairs(rows)
    checks = torch.stack((outside, bad_q, bad_weights, bad_row, pairs))
    token = torch.arange(tokens, device=q.device)
    first = torch.where(checks, token, tokens).amin(1).tolist()  # the one synchronisation
    if first[0] < tokens:
        position = int(positions[first[0]])
        raise BadValueError(
            "positions", f"values below the {num_positions} rows of the cache", f"{position} at token {first[0]}",
            "grow the cache, or mark padding with a negative position.",
        )  # fmt: skip
    if first[1] < tokens:
        (head, dim), value = _not_finite(q[first[1]])
        raise BadValueError(
            "q", "finite values", f"{value} at token {first[1]}, head {head}, dim {dim}",
            "look at the projection that made q.",
        )  # fmt: skip
    if first[2] < tokens:
        (head,), value = _not_finite(weights[first[2]])
        raise BadValueError(
            "weights", "finite values", f"{value} at token {first[2]}, head {head}",
            "look at the projection that made the weights.",
        )  # fmt: skip
    if first[3] < tokens:
        row = int(positions[first[3]])
        raise BadValueError(
            "cos_sin_cache", "finite values", f"NaN or Inf in row {row}, the position of token {first[3]}",
            "look at how the cache was filled.",
        )  # fmt: skip
    if first[4] < tokens:
        row = int(positions[first[4]])
        raise BadValueError(
            "cos_sin_cache", "rows of R/2 cosines, then R/2 sines",
            f"(cos, sin) pairs in row {row}, the position of token {first[4]}",
            "pass torch.cat([cache[:, ::2], cache[:, 1::2]], dim=-1), made once.",
        )  # fmt: skip


def _not_finite(values: Tensor) -> tuple[list[int], float]:
    """Where the first NaN or Inf lies, and which it is."""
    place = (~values.isfinite()).nonzero()[0].tolist()
    return place, float(values[tuple(place)])


def _are_pairs(rows: Tensor) -> Tensor:
    """Say of each row (T, R) whether it can be read as (cos, sin) pairs alone, and not as halves: (T,) bool.

    cos**2 + sin**2 is one number along a row, 1 or the square of YaRN's factor, but for a rounding to bf16 far below
    both bounds. So no row of halves is taken for pairs, position 0 included; nor is one of NaN or Inf.
    """
    halves, pairs = rows.unflatten(-1, (2, -1)).square().sum(-2), rows.unflatten(-1, (-1, 2)).square().sum(-1)
    return (_spread(halves) > 1 / 4) & (_spread(pairs) < 1 / 32)


def _spread(values: Tensor) -> Tensor:
    least, most = values.aminmax(dim=-1)
    return (most - least) / most
