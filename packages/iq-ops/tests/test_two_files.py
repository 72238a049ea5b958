"""`iq-ops verify OUT --inputs IN`: each error names the file that is at fault, each note the files that disagree."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from iq_ops import cli, dumps, files


@pytest.fixture
def verify(make_dump, save, monkeypatch):
    """`verify(meta_out, meta_in, *options, **changes)`: of OUT and IN, with IN's tensors changed (None: left out)."""
    monkeypatch.setenv("COLUMNS", "400")
    outputs, no_inputs = make_dump("fp8"), dict.fromkeys(dumps.INPUTS)
    no_outputs = {"q_fp8": None, "weights_out": None}

    def run(meta_out=None, meta_in=None, *options, **changes):
        out = save(outputs, meta_out, "out.safetensors", **no_inputs)
        source = save(outputs, meta_in, "in.safetensors", **no_outputs, **changes)
        result = CliRunner().invoke(cli.app, ["verify", str(out), "--inputs", str(source), *options])
        result.text = " ".join(result.output.split()).replace(str(out.parent) + "/", "")
        return result

    return run


def test_a_missing_input_is_of_the_file_it_was_to_be_in(verify):
    result = verify(q=None)
    assert result.exit_code == 2
    assert "in.safetensors: q: expected a tensor of this name" in result.text
    assert "--inputs" not in result.text


def test_a_wrong_dtype_is_of_the_file_it_is_in(verify, inputs):
    result = verify(index_q=inputs.q.float(), q=None)
    assert result.exit_code == 2
    assert "in.safetensors: index_q: expected dtype torch.bfloat16" in result.text


@pytest.mark.parametrize("name", ["weights_head_scale", "hadamard"])
@pytest.mark.parametrize("at", ["in", "out"])
def test_bad_metadata_is_of_the_file_it_is_in(verify, name, at):
    result = verify(*({name: "big"} if at == which else {} for which in ("out", "in")))
    assert result.exit_code == 2
    assert f"error: {at}.safetensors: metadata {name}: expected" in result.text


def test_metadata_of_the_outputs_comes_first_and_of_the_inputs_counts_too(verify, inputs):
    scale = repr(inputs.weights_head_scale)
    assert verify({"weights_head_scale": scale}, {"weights_head_scale": "2"}).exit_code == 0
    assert verify({}, {"weights_head_scale": "2"}).exit_code == 1
    assert verify({}, {"hadamard": "true"}).exit_code == 1
    assert "Head scale assumed" not in verify({}, {"weights_head_scale": scale}).text
    assert "Head scale assumed" in verify().text


def test_a_model_of_another_shape_is_of_the_inputs(verify):
    assert "in.safetensors: q and cos_sin_cache: expected deepseek-v4" in verify({}, {}, "--model", "deepseek-v4").text


def test_files_of_two_calls_are_told_as_such(verify, inputs):
    cut = {name: getattr(inputs, name)[:5].clone() for name in ("positions", "q", "weights")}
    result = verify(**cut)
    assert result.exit_code == 2
    assert "out.safetensors: q_fp8: expected size T = 5" in result.text
    assert "outputs and inputs must be of one call, and the inputs are those of in.safetensors" in result.text
    assert "[:5]" not in result.text


def test_what_an_option_overrides_counts_in_no_file(verify):
    neox, tail = {"rope_style": "neox"}, {"rope_style": "interleaved"}
    assert "in out.safetensors, which counts, and" in verify(neox, tail).text
    result = verify(neox, tail, "--rope-style", "interleaved")
    assert result.exit_code == 0
    assert "rope_style is neox in out.safetensors and interleaved in in.safetensors" in result.text
    scales = {"weights_head_scale": "1"}, {"weights_head_scale": "2"}
    assert "which counts" in verify(*scales).text
    assert "which counts" in verify(*scales, "--softmax-scale", "1").text
    assert "1 in out.safetensors and 2 in" in verify(*scales, "--head-scale", "1").text


def test_equal_texts_disagree_in_nothing(verify):
    assert "one of them is wrong" not in verify({"weights_head_scale": "nan"}, {"weights_head_scale": "NaN"}).text


@pytest.mark.parametrize(
    ("meta_out", "meta_in", "option", "line"),
    [
        ({"hadamard": "true"}, {}, "--no-hadamard", "! hadamard is true in out.safetensors, but false is demanded, as"),
        ({}, {"rope_at": "head"}, "--rope-at=tail", "! rope_at is head in in.safetensors, but tail is demanded, as"),
    ],
)
def test_metadata_that_contradicts_an_option_is_told(verify, meta_out, meta_in, option, line):
    result = verify(meta_out, meta_in, option)
    assert result.exit_code == 0
    assert f"{line} {option.partition('=')[0]} has it" in result.text
    assert "demanded" not in verify({}, {}, option).text


def test_metadata_that_contradicts_the_model_is_told(make_inputs, make_dump, save):
    path = save(make_dump("fp8", of=make_inputs(num_heads=8)), {"rope_at": "head", "hadamard": "false"})
    text = " ".join(CliRunner().invoke(cli.app, ["verify", str(path), "--model", "deepseek-v4"]).stdout.split())
    assert "tail is demanded, as --model deepseek-v4 has it" in text
    assert text.count("demanded") == 1


def test_quantize_knows_no_option_inputs(make_dump, save, tmp_path):
    path = save(make_dump("fp8"), q=None)
    result = CliRunner().invoke(cli.app, ["quantize", str(path), str(tmp_path / "out"), "--format", "fp8"])
    assert result.exit_code == 2
    assert "--inputs" not in result.stderr
    file = files.read(path)
    with pytest.raises(files.DumpError, match="--inputs"):
        dumps.read_inputs(file, outputs=file)
