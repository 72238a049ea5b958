"""`iq-ops quantize`: which layout and scales it takes, from the options, the model or the file, and what it says."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from iq_ops import cli, dumps, files, quantize, specs

NEOX = {"rope_style": "neox", "rope_at": "head", "hadamard": "true"}
NEOX_SPEC = specs.IndexerQSpec("neox", "head", hadamard=True)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    return lambda *arguments: CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture
def save_inputs(make_inputs, tmp_path):
    def write(metadata=None, name="in.safetensors", **shape):
        inputs = make_inputs(**{"num_heads": 8, "num_tokens": 24, **shape})
        files.write(tmp_path / name, {key: getattr(inputs, key) for key in dumps.INPUTS}, metadata or {})
        return inputs, tmp_path / name

    return write


def codes_as(inputs, spec):
    return quantize.quantize(inputs, "fp8", spec).tensors["q_fp8"].view(torch.uint8)


@pytest.mark.parametrize(
    ("metadata", "options", "spec"),
    [
        ({}, [], specs.DEEPSEEK_V4),
        (NEOX, [], NEOX_SPEC),
        (NEOX, ["--rope-style", "neox"], NEOX_SPEC),
        ({}, ["--rope-style", "neox", "--rope-at", "head", "--hadamard"], NEOX_SPEC),
        ({"rope_at": "head"}, ["--model", "glm-5"], specs.GLM_5),
        ({}, ["--model", "deepseek-v4", "--hadamard"], specs.DEEPSEEK_V4_HADAMARD),
    ],
)
def test_the_layout_is_the_options_the_models_or_the_files(run, save_inputs, tmp_path, metadata, options, spec):
    inputs, source = save_inputs(metadata)
    target = tmp_path / "out.safetensors"
    result = run("quantize", source, target, "--format", "fp8", *options)
    assert result.exit_code == 0, result.output
    written = files.read(target)
    assert torch.equal(written.tensors["q_fp8"].view(torch.uint8), codes_as(inputs, spec))
    assert {name: written.metadata[name] for name in NEOX} == {
        "rope_style": spec.rope_style,
        "rope_at": spec.rope_at,
        "hadamard": str(spec.hadamard).lower(),
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "glm-5"], ["rope_style interleaved, hadamard false, as --model glm-5", "drop --model glm-5"]),
        (["--no-hadamard"], ["hadamard false, as --no-hadamard has it, got hadamard true", "drop --no-hadamard"]),
    ],
)
def test_what_contradicts_the_file_is_an_error(run, save_inputs, tmp_path, options, words):
    target = tmp_path / "out.safetensors"
    result = run("quantize", save_inputs(NEOX)[1], target, "--format", "fp8", *options)
    assert result.exit_code == 2
    assert all(word in result.stderr for word in (*words, "or correct the file")), result.stderr
    assert not target.exists()


def test_a_model_of_another_shape_needs_no_model(run, save_inputs, tmp_path):
    source, target = save_inputs(head_dim=64, rope_dim=32)[1], tmp_path / "out.safetensors"
    result = run("quantize", source, target, "--format", "fp8", "--model", "deepseek-v4")
    assert result.exit_code == 2
    assert "--rope-style, --rope-at and --hadamard" in result.stderr
    assert run("quantize", source, target, "--format", "fp8", "--rope-style", "neox").exit_code == 0


def test_an_assumed_head_scale_is_told(run, save_inputs, tmp_path):
    source, target = save_inputs()[1], tmp_path / "out.safetensors"
    quantized = ("quantize", source, target, "--format", "fp8")
    result = run(*quantized)
    assert "Head scale assumed: 8**-0.5, from the heads of this q" in result.stderr
    assert files.read(target).metadata["weights_head_scale"] == repr(8**-0.5)
    assert "Head scale assumed" not in run("verify", target, "--inputs", source).output  # its metadata has it
    for option in (["--model", "deepseek-v4"], ["--head-scale", "0.125"]):
        assert "Head scale assumed" not in run(*quantized, *option).output
    _, known = save_inputs({"weights_head_scale": "0.125"}, "known.safetensors")
    assert "Head scale assumed" not in run("quantize", known, target, "--format", "fp8").output


def test_verify_tells_an_assumed_head_scale(run, make_dump, save):
    result = run("verify", save(make_dump("fp8")))
    assert result.exit_code == 0
    assert "! Head scale assumed: 6**-0.5" in result.stdout
    assert "Head scale assumed" not in run("verify", save(make_dump("fp8")), "--head-scale", "0.4").output


def test_it_says_who_ran_it_and_how_to_check(run, save_inputs, tmp_path):
    source, target = save_inputs(NEOX)[1], tmp_path / "out.safetensors"
    result = run("quantize", source, target, "--format", "mxfp4", "--head-scale", "0.125")
    last = result.stdout.splitlines()[-3:]
    assert last[0].startswith("By ")
    assert last[0].endswith(", in the layout neox, head, Hadamard.")
    assert last[2] == f"Check it: iq-ops verify {target} --inputs {source}"
    assert result.stderr == ""  # no bar where there is no terminal


def test_verify_without_the_inputs_says_how_to_pass_them(run, save_inputs, tmp_path):
    source, target = save_inputs()[1], tmp_path / "out.safetensors"
    assert run("quantize", source, target, "--format", "fp8").exit_code == 0
    result = run("verify", target)
    assert result.exit_code == 2
    assert "--inputs IN.safetensors" in result.stderr


def test_verify_says_where_two_files_disagree(run, save_inputs, tmp_path):
    source, target = save_inputs()[1], tmp_path / "out.safetensors"
    assert run("quantize", source, target, "--format", "fp8").exit_code == 0
    assert "one of them is wrong" not in run("verify", target, "--inputs", source).stdout
    _, other = save_inputs(
        {"rope_style": "neox", "rope_at": "tail", "weights_head_scale": "0.125"}, "other.safetensors"
    )
    words = " ".join(run("verify", target, "--inputs", other).stdout.split())
    assert f"rope_style is interleaved in {target}, which counts, and neox in {other}" in words
    assert "weights_head_scale is 0.35" in words
    assert "rope_at is" not in words


def test_a_folder_that_is_not_there_is_told_before_any_work(run, save_inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(quantize, "quantize", lambda *args: pytest.fail("it quantized"))
    result = run("quantize", save_inputs()[1], tmp_path / "no" / "out.safetensors", "--format", "fp8")
    assert result.exit_code == 2
    assert f"the folder {tmp_path / 'no'} does not exist" in result.stderr
