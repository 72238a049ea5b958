"""The search over conventions: which one gives the bytes of a dump.

The product of all axes has tens of thousands of members, and fine ones (an FMA, a floor) show in one byte of millions.
So: rank on a small sample of rows, compare the winner with every row, add the rows that refute it to the sample, and
rank again, until a winner stands or repeats itself. Rows that the contract treats as edges take no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from . import _compare, _variants
from .conventions import AXES, Convention, choices
from .dumps import Dump

CHUNK_ELEMENTS = 1 << 22
SAMPLE_ROWS = 96
WITNESS_ROWS = 1024  # rows on which two conventions are told apart for the report
MAX_PASSES = 6
UNRELATED = 0.8  # share of differing bytes above which the best convention is chance, and says nothing of the options

Progress = Callable[[str, int, int], None]

_COARSE = ("rope_style", "rope_at", "rotation", "hadamard", "scale", "nibbles", "scale_bytes")
_FINE = ("arithmetic", "rotated", "transformed", "hadamard", "scale", "floor", "ties", "zero")
_VALUE_AXES = ("rope_style", "rope_at", "rotation", "arithmetic", "rotated", "hadamard", "transformed")


@dataclass(frozen=True)
class Outcome:
    """A convention compared with every ordinary row: its reports, and rows (token * H + head) that refute it."""

    convention: Convention
    reports: tuple[_compare.TensorReport, ...]
    refuting: Tensor

    @property
    def differing(self) -> int:
        """Elements that differ, over all outputs."""
        return sum(report.differing for report in self.reports)


@dataclass(frozen=True)
class _Sample:
    rows: _variants.Rows
    codes: Tensor
    scale: Tensor | None
    weights: Tensor


class Search:
    """The dump's ordinary rows, and the ways to rank conventions on them. `ordinary` is (T, H) bool."""

    def __init__(self, dump: Dump, ordinary: Tensor, progress: Progress) -> None:
        self.dump, self.ordinary, self.progress = dump, ordinary, progress
        self._generator = torch.Generator().manual_seed(0)
        self._rows = ordinary.flatten().nonzero().flatten()
        self._refuting = self._rows[:0]  # rows that told conventions apart

    def coarse(self, declared: dict[str, str]) -> list[Convention]:
        """Rank the conventions that change most bytes on a random sample: the best first, ties to fewest deviations."""
        fmt, sample = self.dump.fmt, self._sample(self._random(SAMPLE_ROWS))
        found = [
            Convention(**dict(zip(_COARSE, chosen, strict=True)))
            for chosen in product(*(_coarse_choices(axis, fmt) for axis in _COARSE))
        ]
        found = [convention for convention in found if _sensible(convention)]
        scores = self._scores(found, sample)
        if min(scores.values()) > UNRELATED * sample.codes.numel():
            return [Convention(**declared)]
        found.sort(key=lambda c: (scores[c], len(c.deviations()), _undeclared(c, declared)))
        return [convention for convention in found[:3] if scores[convention] <= 2 * scores[found[0]] + 8]

    def find(self, coarse: list[Convention]) -> Outcome:
        """Return the convention that differs least from the dump over all ordinary rows, starting from `coarse`."""
        candidates = list(dict.fromkeys(fine for base in coarse for fine in _refinements(base, self.dump.fmt)))
        picked, outcomes = self._random(SAMPLE_ROWS), dict[Convention, Outcome]()
        for number in range(1, MAX_PASSES + 1):
            sample = self._sample(picked)
            scores = self._scores(candidates, sample)
            least = min(scores.values())
            candidates = [c for c in candidates if scores[c] <= least + 16 + sample.codes.numel() // 20]
            best = min(candidates, key=lambda c: (scores[c], len(c.deviations())))
            if best in outcomes:
                break
            outcomes[best] = self.compare(best, f"comparing with convention {number}")
            if outcomes[best].differing == 0:
                break
            self._refuting = torch.cat((self._refuting, outcomes[best].refuting)).unique()
            picked = torch.cat((picked, outcomes[best].refuting)).unique()
        return min(outcomes.values(), key=lambda o: (o.differing, len(o.convention.deviations())))

    def undecided(self, convention: Convention) -> dict[str, tuple[str, ...]]:
        """Return, for each axis, the other choices that give the same bytes on a large sample of the dump's rows."""
        fmt = self.dump.fmt
        sample = self._sample(torch.cat((self._random(WITNESS_ROWS), self._refuting)))
        base = self._outputs(convention, sample)
        found: dict[str, tuple[str, ...]] = {}
        for number, axis in enumerate(AXES):
            self.progress("looking for what this dump leaves open", number, len(AXES))
            if axis == "scale_bytes" and self.dump.inputs.q.shape[-1] != 128:
                continue  # bytes that are no int32 have no order
            same = []
            for choice in choices(axis, fmt):
                other = replace(convention, **{axis: choice})
                if other == convention or not _sensible(other):
                    continue
                if all(torch.equal(x, y) for x, y in zip(base, self._outputs(other, sample), strict=True)):
                    same.append(choice)
            if same:
                found[axis] = tuple(same)
        return found

    def compare(self, convention: Convention, label: str) -> Outcome:
        """Compare a convention with every ordinary row, under the weights formula that fits best."""
        dump, inputs = self.dump, self.dump.inputs
        num_tokens, num_heads, head_dim = inputs.q.shape
        formulas = choices("weights", dump.fmt)
        tallies = output_tallies(dump)
        weights = {name: _compare.Tally("weights_out", num_tokens, num_heads, None) for name in formulas}
        step = max(1, CHUNK_ELEMENTS // (num_heads * head_dim))
        refuting: list[Tensor] = []
        weights_refuting: dict[str, list[Tensor]] = {name: [] for name in formulas}
        for start in range(0, num_tokens, step):
            self.progress(label, start, num_tokens)
            part, shape = slice(start, start + step), inputs.q[start : start + step].shape
            rows = self._rows_at(torch.arange(start * num_heads, start * num_heads + shape[:2].numel()))
            mask = self.ordinary[part]
            codes, scale = _variants.codes_and_scale(_variants.values(rows, convention), convention, dump.fmt)
            touched = tallies["codes"].add(start, codes.unflatten(0, shape[:2]), dump.codes[part], mask)
            if dump.scale is not None:
                touched |= tallies["scale"].add(start, scale.unflatten(0, shape[:2]), dump.scale[part], mask)
            refuting.append(touched.flatten().nonzero().flatten() + start * num_heads)
            for name in formulas:
                expected = self._weights(rows, replace(convention, weights=name), scale).unflatten(0, shape[:2])
                touched = weights[name].add(start, expected, dump.weights_out[part], mask)
                weights_refuting[name].append(touched.flatten().nonzero().flatten() + start * num_heads)
        self.progress(label, num_tokens, num_tokens)
        best = min(formulas, key=lambda name: weights[name].differing)
        reports = (*(tally.report() for tally in tallies.values()), weights[best].report())
        witnesses = torch.cat((_few(refuting), _few(weights_refuting[best])))
        return Outcome(replace(convention, weights=best), reports, witnesses)

    def weights_ratio(self, convention: Convention) -> float | None:
        """Return c if weights_out is c times what `convention` gives, c != 1, in every row of a large sample."""
        sample = self._sample(self._random(WITNESS_ROWS))
        scale = _variants.codes_and_scale(_variants.values(sample.rows, convention), convention, self.dump.fmt)[1]
        expected, actual = self._weights(sample.rows, convention, scale).double(), sample.weights.double()
        ratio = (actual / expected)[(expected != 0) & expected.isfinite()]
        if not len(ratio):
            return None
        middle = float(ratio.median())
        tolerance = 2.0**-20 if self.dump.weights_out.dtype == torch.float32 else 2.0**-7
        constant = bool(((ratio / middle - 1).abs() < tolerance).all())
        return middle if constant and abs(middle - 1) > 4 * tolerance else None

    def _random(self, number: int) -> Tensor:
        order = torch.randperm(len(self._rows), generator=self._generator)[:number]
        return self._rows[order]

    def _rows_at(self, index: Tensor) -> _variants.Rows:
        inputs = self.dump.inputs
        num_heads = inputs.q.shape[1]
        token, head = index // num_heads, index % num_heads
        positions = inputs.positions[token].long().clamp(0, inputs.cos_sin_cache.shape[0] - 1)
        return _variants.Rows(
            positions, inputs.q[token, head], inputs.cos_sin_cache, inputs.weights[token, head],
            inputs.weights_softmax_scale, inputs.weights_head_scale,
        )  # fmt: skip

    def _sample(self, index: Tensor) -> _Sample:
        dump = self.dump
        scale = None if dump.scale is None else dump.scale.flatten(0, 1)[index]
        codes, weights = dump.codes.flatten(0, 1)[index], dump.weights_out.flatten()[index]
        return _Sample(self._rows_at(index), codes, scale, weights)

    def _weights(self, rows: _variants.Rows, convention: Convention, scale: Tensor) -> Tensor:
        fp8_scale = scale if self.dump.fmt == "fp8" else None
        return _variants.weights_out(rows, convention, fp8_scale, self.dump.weights_out.dtype)

    def _outputs(self, convention: Convention, sample: _Sample) -> tuple[Tensor, Tensor, Tensor]:
        codes, scale = _variants.codes_and_scale(_variants.values(sample.rows, convention), convention, self.dump.fmt)
        return codes, scale.view(torch.uint8), self._weights(sample.rows, convention, scale).view(torch.uint8)

    def _scores(self, candidates: list[Convention], sample: _Sample) -> dict[Convention, int]:
        """Differing elements on the sample: codes, scales, and weights under their best formula."""
        values: dict[tuple[str, ...], Tensor] = {}
        scores: dict[Convention, int] = {}
        formulas = choices("weights", self.dump.fmt)
        by_scale: dict[bytes, int] = {}
        for number, convention in enumerate(candidates):
            if number % 64 == 0:
                self.progress("ranking conventions on a sample", number, len(candidates))
            key = tuple(getattr(convention, axis) for axis in _VALUE_AXES)
            if key not in values:
                values[key] = _variants.values(sample.rows, convention)
            codes, scale = _variants.codes_and_scale(values[key], convention, self.dump.fmt)
            score = int((codes != sample.codes).sum())
            if sample.scale is not None:
                score += int((scale != sample.scale).sum())
            scale_key = scale.numpy().tobytes() if self.dump.fmt == "fp8" else b""
            if scale_key not in by_scale:
                by_scale[scale_key] = min(
                    int((self._weights(sample.rows, replace(convention, weights=name), scale) != sample.weights).sum())
                    for name in formulas
                )
            scores[convention] = score + by_scale[scale_key]
        self.progress("ranking conventions on a sample", len(candidates), len(candidates))
        return scores


def output_tallies(dump: Dump) -> dict[str, _compare.Tally]:
    """Return empty tallies for the codes and, where the dump has one, the scale."""
    num_tokens, num_heads, head_dim = dump.inputs.q.shape
    tallies = {"codes": _compare.Tally("q_fp8" if dump.fmt == "fp8" else "q_packed", num_tokens, num_heads, head_dim)}
    if dump.scale is not None:
        blocks = None if dump.scale.dim() == 2 else dump.scale.shape[-1]
        tallies["scale"] = _compare.Tally("q_scale", num_tokens, num_heads, blocks)
    return tallies


def _few(parts: list[Tensor]) -> Tensor:
    """Up to SAMPLE_ROWS // 2 of these rows, spread evenly."""
    rows = torch.cat(parts)
    limit = SAMPLE_ROWS // 2
    return rows if len(rows) <= limit else rows[torch.linspace(0, len(rows) - 1, limit).long()]


def _coarse_choices(axis: str, fmt: str) -> tuple[str, ...]:
    names = choices(axis, fmt)
    if axis == "hadamard":
        return names[:2]  # the order of the strides shows in last bits only
    return names[:3] if axis == "scale" else names  # one exact scale stands for all


def _refinements(base: Convention, fmt: str) -> Iterator[Convention]:
    options = []
    for axis in _FINE:
        names = choices(axis, fmt)
        if axis == "hadamard":
            names = names[:1] if base.hadamard == "none" else names[1:]
        elif axis == "scale":
            exact = base.scale.startswith("exact")
            names = tuple(name for name in names if name.startswith("exact")) if exact else (base.scale,)
        options.append(names)
    for chosen in product(*options):
        convention = replace(base, **dict(zip(_FINE, chosen, strict=True)))
        if _sensible(convention):
            yield convention


def _sensible(convention: Convention) -> bool:
    """False for a combination that another one computes too."""
    plain = Convention()
    if convention.rotation == "skipped" and any(
        getattr(convention, axis) != getattr(plain, axis) for axis in ("rope_style", "rope_at", "arithmetic", "rotated")
    ):
        return False
    if convention.arithmetic == "bf16" and (convention.rotated == "fp32" or convention.rotation == "bf16 cache"):
        return False
    return convention.hadamard != "none" or convention.transformed == "bf16"


def _undeclared(convention: Convention, declared: dict[str, str]) -> int:
    return sum(getattr(convention, axis) != choice for axis, choice in declared.items())
