"""`verify`: follows the golden vectors, recovers every planted convention, points at the first differing element."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from iq_ops import _render_verify, dumps, verify
from iq_ops.conventions import AXES, FORMATS, Convention, choices

GOLDEN = sorted((Path(__file__).parents[3] / "tests" / "golden").glob("*.npz"))
assert len(GOLDEN) == 11


def told(dump, found):
    return rendered(dump, found, ())


def rendered(dump, found, notes):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(_render_verify.verdict(dump, found, notes))
    return console.export_text()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_vectors_follow(path):
    dump, options = golden_dump(path)
    found = verify.verify(dump, options)
    assert found.follows, found
    assert found.closest is None
    assert {"padding: position < 0", "position past the cache", "NaN or Inf"} == {edge.kind for edge in found.edges}
    assert not any(edge.differing for edge in found.edges)
    assert "Follows contract 1" in told(dump, found)


def golden_dump(path):
    arrays = np.load(path)
    options = json.loads(str(arrays["options"]))

    def bf16(array):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)

    cache = bf16(arrays["cache"]) if arrays["cache"].dtype == np.uint16 else torch.from_numpy(arrays["cache"])
    inputs = dumps.Inputs(
        torch.from_numpy(arrays["positions"]), bf16(arrays["q"]), cache, torch.from_numpy(arrays["weights"]),
        options["weights_softmax_scale"], options["weights_head_scale"],
    )  # fmt: skip
    scale = torch.from_numpy(arrays["scales"]) if "scales" in arrays else None
    codes, weights_out = torch.from_numpy(arrays["codes"]), torch.from_numpy(arrays["weights_out"])
    declared = {name: options[name] for name in ("rope_style", "rope_at", "hadamard")}
    return dumps.Dump(options["format"], inputs, codes, scale, weights_out), declared


PLANTED = [
    (fmt, {axis: choice})
    for fmt in FORMATS
    for axis in AXES
    for choice in choices(axis, fmt)[1:]
    if axis not in ("rope_style", "rope_at", "transformed")
] + [
    ("fp8", {"hadamard": "ascending", "transformed": "fp32"}),
    ("mxfp4", {"hadamard": "ascending", "transformed": "fp32"}),
    ("fp8", {"hadamard": "ascending", "scale": "exact a/m v/s"}),
    ("mxfp4", {"hadamard": "ascending", "rotated": "fp32", "ties": "toward zero", "zero": "unsigned"}),
    ("mxfp4", {"rope_style": "neox", "rope_at": "head", "nibbles": "even high", "weights": "sequence"}),
    ("fp8", {"rope_at": "head", "floor": "1e-10", "arithmetic": "fma cos cos", "weights": "apart"}),
    ("fp8", {"weights": "scale twice"}),
    ("mxfp4", {"rotation": "pairs", "floor": "1e-12", "ties": "toward zero"}),
]


@pytest.mark.parametrize(
    ("fmt", "axes"), PLANTED, ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value
)
def test_a_planted_convention_is_recovered(make_dump, fmt, axes):
    planted = Convention(**axes)
    dump = make_dump(fmt, **axes)
    contract = make_dump(
        fmt, rope_style=planted.rope_style, rope_at=planted.rope_at, hadamard=planted.hadamard.replace("de", "a")
    )
    found = verify.verify(dump)
    if same_bytes(dump, contract):
        assert found.follows
        return
    assert not found.follows
    assert found.closest is not None
    assert sum(report.differing for report in found.closest_reports) == 0
    for axis in AXES:  # what it names is what was planted, or gives the same bytes and says so
        named, truth = getattr(found.closest, axis), getattr(planted, axis)
        assert named == truth or truth in found.undecided[axis], (axis, named, truth, found.undecided)
    assert "It follows" in told(dump, found)


def same_bytes(one, other):
    pairs = [(one.codes, other.codes), (one.weights_out, other.weights_out)]
    if one.scale is not None:
        pairs.append((one.scale, other.scale))
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs)


@pytest.mark.parametrize("weights_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fmt", FORMATS)
def test_weights_of_both_dtypes(make_dump, fmt, weights_dtype):
    assert verify.verify(make_dump(fmt, weights_dtype)).follows


@pytest.mark.parametrize("fmt", FORMATS)
def test_one_flipped_byte_is_found_where_it_is(make_dump, fmt):
    dump = make_dump(fmt)
    index = (17, 4, 33 if fmt == "fp8" else 16)
    before = int(dump.codes[index])
    dump.codes[index] = before ^ 0x10 if fmt == "mxfp4" else before ^ 1  # MXFP4: the high nibble, dim 33
    found = verify.verify(dump)
    report = found.contract[0]
    assert report.differing == 1
    first = report.first
    assert (first.token, first.head, first.dim) == (17, 4, 33)
    assert (first.expected, first.actual) == (f"0x{before:02X}", f"0x{int(dump.codes[index]):02X}")
    assert report.tokens == (1, 17, 18, 48)
    assert report.heads == (1, 4, 5, 6)
    assert report.dims == (1, 33, 34, 128)
    assert all(other.differing == 0 for other in found.contract[1:])
    text = told(dump, found)
    assert "token 17, head 4, dim 33" in text
    assert "No known convention is closer than the contract itself" in text


def test_scale_and_weight_differences_are_found(make_dump):
    dump = make_dump("mxfp4")
    dump.scale[9, 2, 3] += 1
    dump.weights_out[11, 5] = dump.weights_out[11, 5].nextafter(torch.tensor(torch.inf))
    scale, weights = verify.verify(dump).contract[1:]
    assert (scale.first.token, scale.first.head, scale.first.dim, scale.largest_step) == (9, 2, 96, 1)
    assert (weights.first.token, weights.first.head, weights.first.dim, weights.largest_step) == (11, 5, None, 1)


@pytest.mark.parametrize("fmt", FORMATS)
def test_edges_are_judged_apart(make_dump, inputs, fmt):
    positions, q = inputs.positions.clone(), inputs.q.clone()
    positions[7], positions[8], q[9, 3, 5] = -1, 512, torch.inf
    edgy = replace(inputs, positions=positions, q=q)
    engine = replace(make_dump(fmt), inputs=edgy)  # an engine that guards nothing
    found = verify.verify(engine)
    assert not found.follows
    assert found.closest is None
    assert {edge.kind: (edge.rows, edge.differing) for edge in found.edges} == {
        "padding: position < 0": (6, 6),
        "position past the cache": (6, 6),
        "NaN or Inf": (1, 1),
    }
    assert "ordinary rows only" in told(engine, found)
    fused = make_dump(fmt, arithmetic="bf16")
    assert verify.verify(replace(fused, inputs=edgy)).closest == Convention(arithmetic="bf16")


def test_asked_options_are_demanded(make_dump):
    dump = make_dump("fp8", hadamard="ascending")
    assert verify.verify(dump).follows
    found = verify.verify(dump, {"hadamard": False})
    assert not found.follows
    assert found.closest == Convention(hadamard="ascending")
    text = told(dump, found)
    assert "follows the contract with other options" in text
    assert "must match what was done to the K cache" in text


def test_metadata_options_are_demanded_too(make_dump):
    dump = replace(make_dump("fp8"), spec={"rope_at": "head"})
    assert not verify.verify(dump).follows
    assert verify.verify(dump, {"rope_at": "tail"}).follows


def test_another_head_scale_is_recognised(make_dump):
    dump = make_dump("fp8")
    dump.weights_out.mul_(1.5)
    found = verify.verify(dump)
    assert found.weights_ratio == pytest.approx(1.5)
    text = told(dump, found)
    assert "weights_out is 1.5 times" in text
    assert f"--head-scale of about {1.5 * 6**-0.5:.7g}" in " ".join(text.split())
    assert "All codes of ordinary rows are the contract's" in text


@pytest.mark.parametrize("weights_dtype", [torch.float32, torch.bfloat16])
def test_a_shard_that_kept_the_models_head_scale_is_recognised(make_dump, inputs, weights_dtype):
    whole = make_dump("fp8", weights_dtype, of=replace(inputs, weights_head_scale=48**-0.5))
    dump = replace(whole, inputs=inputs)
    text = told(dump, verify.verify(dump))
    assert "a shard of a model of 48 heads" in text
    assert f"--head-scale {48**-0.5!r}" in text  # all digits: fewer would not give every byte


@pytest.mark.parametrize(
    ("name", "power", "words"), [("softmax", 2, "applied twice"), ("head", 0, "scale is left out")]
)
def test_a_scale_applied_twice_or_left_out_is_named(make_dump, inputs, name, power, words):
    field = f"weights_{name}_scale"
    scales = {"weights_softmax_scale": 64**-0.5, "weights_head_scale": 0.3}
    right = replace(inputs, **scales)
    dump = replace(make_dump("fp8", of=replace(right, **{field: scales[field] ** power})), inputs=right)
    text = told(dump, verify.verify(dump))
    assert words in " ".join(text.split())
    assert f"{name} scale" in " ".join(text.split())


def test_bytes_that_are_no_int32_have_no_order(make_inputs, make_dump):
    dump = make_dump("mxfp4", of=make_inputs(head_dim=64, rope_dim=32))
    found = verify.verify(dump)
    assert found.follows
    assert "scale_bytes" not in found.undecided


def test_notes_stand_below_the_verdict(make_dump):
    dump = make_dump("fp8")
    lines = [line.strip() for line in rendered(dump, verify.verify(dump), ["a note [of] note"]).splitlines()]
    assert lines[1].startswith("✓ Follows contract 1")
    assert lines[3] == "! a note [of] note"


def test_rounding_noise_is_told_as_such(make_dump):
    dump = make_dump("fp8", hadamard="ascending")
    noisy = (torch.rand(dump.codes.shape, generator=torch.Generator().manual_seed(2)) < 1e-3) & (
        dump.codes & 0x7F < 0x70
    )
    dump.codes[noisy] += 1
    found = verify.verify(dump)
    assert found.closest == Convention(hadamard="ascending")
    assert found.closest_reports[0].differing == int(noisy.sum())
    assert "each by one step of e4m3 at most" in told(dump, found)


def test_unrelated_outputs_name_no_convention(make_dump):
    dump = make_dump("fp8")
    dump.codes.random_(0, 126, generator=torch.Generator().manual_seed(3))
    found = verify.verify(dump)
    assert found.spec == verify.specs.DEEPSEEK_V4
    assert "No known convention comes near" in told(dump, found)


def test_a_fp8_scale_kept_apart_is_compared(make_dump):
    plain = make_dump("fp8", weights="apart")
    codes_scale = make_dump("fp8", weights="scale only")
    scale = codes_scale.weights_out / plain.inputs.weights
    found = verify.verify(replace(plain, scale=torch.exp2(scale.log2().round())))
    assert found.closest == Convention(weights="apart")
    assert [report.name for report in found.closest_reports] == ["q_fp8", "q_scale", "weights_out"]


def test_no_tokens_follow():
    empty = dumps.Inputs(
        torch.empty(0, dtype=torch.int64), torch.empty(0, 4, 32, dtype=torch.bfloat16), torch.ones(8, 32),
        torch.empty(0, 4), 1.0, 1.0,
    )  # fmt: skip
    dump = dumps.Dump("fp8", empty, torch.empty(0, 4, 32, dtype=torch.uint8), None, torch.empty(0, 4))
    found = verify.verify(dump)
    assert found.follows
    assert told(dump, found)


def test_progress_reaches_the_end(make_dump):
    seen = []
    verify.verify(make_dump("fp8", scale="exact a/m v/s"), progress=lambda *step: seen.append(step))
    labels = {label for label, done, total in seen if done == total}
    assert {"comparing with the contract", "ranking conventions on a sample"} <= labels
