"""Whether an engine's dump follows the contract, and if not, which known convention it follows and where it differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from . import _compare, _search, reference, specs
from .conventions import AXES, ENGINES, Convention
from .dumps import Dump

Progress = _search.Progress


@dataclass(frozen=True)
class EdgeReport:
    """Rows (token, head) of one kind that the contract treats apart, and how many of them differ from it."""

    kind: str
    wanted: str
    rows: int
    differing: int


@dataclass(frozen=True)
class Verdict:
    """What `verify` found.

    follows: every byte of every output, edges included, is the contract's with the options `spec`.
    declared: the options that were asked for (empty: any are fine); models: names in `specs.MODELS` that have `spec`.
    contract: each output against the contract with `spec`; edges: the rows it treats apart.
    closest, closest_reports: where the ordinary rows do not follow, the convention that differs least, and how.
    undecided: axes on which other choices give the same bytes in this dump. engines: those seen to do the same.
    weights_ratio: weights_out is this constant times what `closest` gives, where that explains every difference.
    """

    fmt: str
    follows: bool
    spec: specs.IndexerQSpec
    declared: Mapping[str, str | bool]
    models: tuple[str, ...]
    contract: tuple[_compare.TensorReport, ...]
    edges: tuple[EdgeReport, ...]
    closest: Convention | None
    closest_reports: tuple[_compare.TensorReport, ...]
    undecided: Mapping[str, tuple[str, ...]]
    engines: tuple[str, ...]
    weights_ratio: float | None


def verify(dump: Dump, declared: Mapping[str, str | bool] | None = None, progress: Progress | None = None) -> Verdict:
    """Compare a dump with the contract and, where it differs, with every known convention.

    declared: options (`rope_style`, `rope_at`, `hadamard`) that the dump must follow; without one, any value of it will
    do and the one that fits is reported. progress(label, done, total) is called as the work goes on.
    """
    progress = progress or (lambda label, done, total: None)
    declared = {**dump.spec, **(declared or {})}
    wanted = {axis: _choice(axis, value) for axis, value in declared.items()}
    inside = (dump.inputs.positions >= 0) & (dump.inputs.positions < dump.inputs.cos_sin_cache.shape[0])
    search = _search.Search(dump, _finite(dump, inside), progress)
    coarse = search.coarse(wanted) if search.ordinary.any() else [Convention(**wanted)]
    spec = _spec(coarse[0], declared)
    against = _against_contract(dump, spec, inside, progress)
    follows = all(report.differing == 0 for report in against.reports)
    search = _search.Search(dump, against.ordinary, progress)
    convention = Convention(spec.rope_style, spec.rope_at, hadamard=_choice("hadamard", spec.hadamard))
    closest: Convention | None = None
    reports: tuple[_compare.TensorReport, ...] = ()
    engines: tuple[str, ...] = ()
    ratio = None
    if against.ordinary_differ:
        outcome = search.find(coarse)
        closest, reports = outcome.convention, outcome.reports
        ratio = search.weights_ratio(closest) if reports[-1].differing else None
    undecided = search.undecided(closest or convention) if against.ordinary.any() else {}
    if closest is not None:
        possible = {axis: (getattr(closest, axis), *undecided.get(axis, ())) for axis in AXES}
        engines = tuple(engine.name for engine in ENGINES if engine.matches(possible, dump.fmt))
    models = tuple(name for name, model in specs.MODELS.items() if model.spec == spec)
    return Verdict(
        dump.fmt, follows, spec, declared, models, against.reports, against.edges, closest, reports, undecided, engines,
        ratio,
    )  # fmt: skip


def _choice(axis: str, value: str | bool) -> str:
    return ("ascending" if value else "none") if axis == "hadamard" else str(value)


def _spec(convention: Convention, declared: Mapping[str, str | bool]) -> specs.IndexerQSpec:
    found: dict[str, str | bool] = {
        "rope_style": convention.rope_style,
        "rope_at": convention.rope_at,
        "hadamard": convention.hadamard != "none",
    }
    return specs.IndexerQSpec(**{**found, **declared})  # type: ignore[arg-type]


def _finite(dump: Dump, inside: Tensor) -> Tensor:
    """Rows (T, H) whose inputs are finite and whose position is in the cache."""
    inputs = dump.inputs
    if inputs.cos_sin_cache.shape[0] == 0:
        return torch.zeros(inputs.q.shape[:2], dtype=torch.bool)
    turned = inputs.cos_sin_cache.isfinite().all(-1)[torch.where(inside, inputs.positions, 0).long()]
    return inputs.q.isfinite().all(-1) & (inside & turned)[:, None]


@dataclass(frozen=True)
class _Against:
    reports: tuple[_compare.TensorReport, ...]
    edges: tuple[EdgeReport, ...]
    ordinary: Tensor
    ordinary_differ: bool


def _against_contract(dump: Dump, spec: specs.IndexerQSpec, inside: Tensor, progress: Progress) -> _Against:
    """Compare every row with the reference; return the reports, the edges and which rows are ordinary."""
    inputs, (num_tokens, num_heads, head_dim) = dump.inputs, dump.inputs.q.shape
    tallies = _search.output_tallies(dump)
    if dump.fmt == "fp8":
        tallies.pop("scale", None)  # the contract has no FP8 scale of its own: it is folded into weights_out
    weights = _compare.Tally("weights_out", num_tokens, num_heads, None)
    differ = torch.zeros(num_tokens, num_heads, dtype=torch.bool)
    poisoned = torch.zeros_like(differ)
    step = max(1, _search.CHUNK_ELEMENTS // (num_heads * head_dim))
    for start in range(0, num_tokens, step):
        progress("comparing with the contract", start, num_tokens)
        part = slice(start, start + step)
        codes, scale, expected_weights, poisoned[part] = _contract_outputs(dump, spec, part)
        everything = torch.ones_like(poisoned[part])
        differ[part] |= tallies["codes"].add(start, codes, dump.codes[part], everything)
        if scale is not None and dump.scale is not None:
            differ[part] |= tallies["scale"].add(start, scale, dump.scale[part], everything)
        differ[part] |= weights.add(start, expected_weights, dump.weights_out[part], everything)
    progress("comparing with the contract", num_tokens, num_tokens)
    padding = (inputs.positions < 0)[:, None].expand_as(differ)
    beyond = (inputs.positions >= inputs.cos_sin_cache.shape[0])[:, None].expand_as(differ)
    poisoned &= inside[:, None]
    poison = "codes 0x7F, weights_out NaN" if dump.fmt == "fp8" else "scale byte 0xFF, codes 0"
    edges = tuple(
        EdgeReport(kind, wanted, int(rows.sum()), int((rows & differ).sum()))
        for kind, wanted, rows in (
            ("padding: position < 0", "all zeros", padding),
            ("position past the cache", poison, beyond),
            ("NaN or Inf", poison, poisoned),
        )
        if rows.any()
    )
    ordinary = inside[:, None] & ~poisoned & _finite(dump, inside)
    reports = (*(tally.report() for tally in tallies.values()), weights.report())
    return _Against(reports, edges, ordinary, bool((differ & ordinary).any()))


def _contract_outputs(
    dump: Dump, spec: specs.IndexerQSpec, part: slice
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """The reference's codes, MXFP4 scale, weights_out for a range of tokens, and which rows it poisoned."""
    inputs = dump.inputs
    codes, weights_out = torch.empty_like(dump.codes[part]), torch.empty_like(dump.weights_out[part])
    call: dict[str, Any] = {
        "positions": inputs.positions[part],
        "q": inputs.q[part],
        "cos_sin_cache": inputs.cos_sin_cache,
        "weights": inputs.weights[part],
        "weights_softmax_scale": inputs.weights_softmax_scale,
        "weights_head_scale": inputs.weights_head_scale,
        "weights_out": weights_out,
        **asdict(spec),
    }
    if dump.fmt == "mxfp4" and dump.scale is not None:
        scale = torch.empty_like(dump.scale[part])
        reference.indexer_q_mxfp4(**call, q_packed=codes, q_scale=scale)
        return codes, scale, weights_out, (scale == reference.E8M0_NAN).any(-1)
    reference.indexer_q_fp8(**call, q_fp8=codes)
    return codes, None, weights_out, (codes == reference.FP8_NAN).any(-1)
