"""`explain`: which backend a call would take, and why it would not take each of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _abi, _backends, _requests
from .indexer import PUBLIC_NAMES, input_tensors, op_name
from .specs import DEEPSEEK_V4, IndexerQSpec, check_spec


@dataclass(frozen=True)
class Explanation:
    """What `explain` found. `backend` is None where no backend can run the call; `reasons` has one for each other."""

    op: str
    target: str
    forced: str | None
    backend: str | None
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        how = f"forced to {self.forced!r}" if self.forced else "automatic choice"
        lines = [f"{self.op} on {self.target} ({how}): {self.backend or 'no backend can run it'}"]
        lines += [f"  not {name}: {reason}" for name, reason in self.reasons.items()]
        return "\n".join(lines)


def explain(
    positions: Tensor,
    index_q: Tensor,
    index_q_cos_sin_cache: Tensor,
    index_weights: Tensor,
    index_weights_softmax_scale: float = 1.0,
    index_weights_head_scale: float = 1.0,
    use_fp4: bool = False,
    weights_out_dtype: torch.dtype = torch.float32,
    *,
    spec: IndexerQSpec = DEEPSEEK_V4,
    backend: str | None = None,
) -> Explanation:
    """Tell of a call with these arguments, those of `fused_indexer_q_rope_quant`, without running or compiling it.

    Raises TypeError or ValueError as the call would for arguments that no backend takes.
    """
    op = _abi.OPS[op_name(use_fp4)]
    inputs = input_tensors(positions, index_q, index_q_cos_sin_cache, index_weights)
    _requests.check(op, inputs, PUBLIC_NAMES)
    check_spec(spec)
    facts = {name: _requests.facts_of(tensor) for name, tensor in inputs.items()}
    facts.update(_requests.output_facts(op, facts, str(weights_out_dtype).removeprefix("torch.")))
    request = _requests.request_of(op.name, facts, index_q.device, spec.rope_style, spec.rope_at, spec.hadamard)
    forced = backend or _backends.forced_by_environment()
    verdicts = _backends.verdicts(request, forced)
    reasons = {verdict.backend.name: verdict.reason for verdict in verdicts if verdict.reason is not None}
    able = [verdict.backend.name for verdict in verdicts if verdict.reason is None]
    if forced is not None and forced not in {verdict.backend.name for verdict in verdicts}:
        reasons[forced] = _backends.unknown_backend(forced)
    for name in able[1:]:
        reasons[name] = f"{able[0]!r} is preferred"
    return Explanation(op.name, request.target, forced, able[0] if able else None, reasons)
