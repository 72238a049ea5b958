"""The command line: exit codes, what is printed where, and that `import iq_ops` does not pay for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import iq_ops
from iq_ops import _backends, _warmup, cli, demo_plot, dumps, files, reference, specs
from iq_ops._version import __version__

SHARD_OF_V4 = {"num_heads": 8, "num_tokens": 24}


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")

    def invoke(*arguments):
        return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])

    return invoke


def test_version(run):
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"iq-ops {__version__}\n")


def test_import_does_not_load_the_command_line():
    code = "import sys, iq_ops; print([m for m in ('typer', 'rich', 'safetensors', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_verify_in_a_process_of_its_own(make_dump, save):
    environment = {**os.environ, "COLUMNS": "120"}
    script = [sys.executable, "-c", "from iq_ops.cli import main; main()", "verify"]
    good, bad = save(make_dump("fp8"), name="good"), save(make_dump("fp8", rope_at="head", floor="1e-10"), name="bad")
    for path, code, words in ((good, 0, "Follows contract 1"), (bad, 1, "amax floor 1e-10")):
        done = subprocess.run([*script, str(path)], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == code, done.stderr
        assert words in done.stdout


@pytest.mark.parametrize("fmt", ["fp8", "mxfp4"])
def test_quantize_writes_what_verify_accepts(run, make_inputs, tmp_path, fmt):
    inputs = make_inputs(**SHARD_OF_V4)
    source, target = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    files.write(source, {name: getattr(inputs, name) for name in dumps.INPUTS}, {})
    result = run("quantize", source, target, "--format", fmt, "--model", "deepseek-v4")
    assert result.exit_code == 0, result.output
    written = files.read(target)
    assert written.metadata["weights_head_scale"] == repr(64**-0.5)  # the model's heads, not the shard's
    codes = torch.full((24, 8, 128 if fmt == "fp8" else 64), 0xA5, dtype=torch.uint8)
    weights_out = torch.full((24, 8), 7.0)
    call = {**vars(inputs), "weights_head_scale": 64**-0.5, "weights_out": weights_out}
    if fmt == "fp8":
        reference.indexer_q_fp8(**call, q_fp8=codes)
        assert written.tensors["q_fp8"].dtype == torch.float8_e4m3fn
        assert torch.equal(written.tensors["q_fp8"].view(torch.uint8), codes)
    else:
        reference.indexer_q_mxfp4(**call, q_packed=codes, q_scale=torch.empty(24, 8, 4, dtype=torch.uint8))
        assert torch.equal(written.tensors["q_packed"], codes)
    assert torch.equal(written.tensors["weights_out"], weights_out)
    assert run("verify", target, "--inputs", source).exit_code == 0
    assert run("verify", target, "--inputs", source, "--model", "deepseek-v4").exit_code == 0
    result = run("verify", target, "--inputs", source, "--model", "glm-5")
    assert result.exit_code == 1
    assert "follows the contract with other options" in result.stdout


def test_quantize_in_chunks(run, make_inputs, tmp_path, monkeypatch):
    from iq_ops import quantize

    inputs = make_inputs(**SHARD_OF_V4)
    whole = quantize.quantize(inputs, "mxfp4", specs.GLM_5).tensors
    monkeypatch.setattr(quantize, "CHUNK_ELEMENTS", 7 * 8 * 128)
    steps = []
    parts = quantize.quantize(inputs, "mxfp4", specs.GLM_5, lambda *step: steps.append(step)).tensors
    assert steps == [(7, 24), (14, 24), (21, 24), (24, 24)]
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["quantize", "none.safetensors", "out.safetensors", "--format", "fp8"], "no such file"),
        (["quantize", "IN", "OUT", "--format", "int4"], "int4"),
        (["quantize", "IN", "OUT", "--format", "fp8", "--model", "gpt"], "is none of deepseek-v4"),
        (["verify", "none.safetensors"], "no such file"),
        (["verify", "none.safetensors", "--rope-at", "middle"], "middle"),
        (["warmup", "--arch", "sm100"], "'sm100' is no architecture; did you mean sm_100a?"),
        (["warmup", "--arch", "90"], "'90' is no architecture; did you mean sm_90?"),
        (["warmup", "--arch", "sm_90f"], "'sm_90f' is no architecture; did you mean sm_90?"),
        (["warmup", "--arch", "sm_80a"], "'sm_80a' is no architecture; did you mean sm_80?"),
        (["warmup", "--arch", "tesla"], "'tesla' is no architecture: give one as sm_90"),
        (["warmup", "--arch", "sm_75"], "no backend compiles for sm_75 here: cute: the kernels need sm_80 or later"),
        (["warmup", "--tp", "7"], "7 does not divide the 64 heads"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_usage_and_file_errors_exit_with_2(run, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert not any(unwanted in result.output for unwanted in ("Traceback", "Value error", "Compiling"))


def test_a_model_of_another_shape_is_refused(run, make_dump, save):
    result = run("verify", save(make_dump("fp8")), "--model", "deepseek-v4")
    assert result.exit_code == 2
    assert "a divisor of 64 heads" in result.stderr
    assert "got 6 heads" in result.stderr


def test_verify_options_are_demanded(run, make_dump, save):
    path = save(make_dump("mxfp4", hadamard="ascending"))
    assert run("verify", path, "--hadamard", "--rope-at", "tail", "--rope-style", "interleaved").exit_code == 0
    assert run("verify", path, "--no-hadamard").exit_code == 1
    assert run("verify", path, "--head-scale", "0.5").exit_code == 1


def test_verify_help_at_80_columns(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = run("verify", "--help").stdout
    assert "…" not in text
    assert all(model in text for model in specs.MODELS)
    assert text.count("<bool>") <= 1  # typer's own, of --help


def test_warmup_tells_what_was_compiled_where(run, monkeypatch, tmp_path):
    monkeypatch.setenv("IQ_KERNELS_CACHE_DIR", str(tmp_path))
    result = run("warmup", "--model", "deepseek-v4.1", "--tp", "32", "--arch", "sm_100a")
    assert result.exit_code == 0, result.output
    head, *lines = result.stdout.splitlines()
    assert head.endswith("compiled or loaded for deepseek-v4.1 with 1 heads on sm_100a.")
    assert lines == [
        f"  cute: {head.split()[0]}, in {tmp_path}",
        "  triton: none, as another backend takes these calls",
    ]


def test_warmup_ahead_tells_that_all_is_there_already(run, monkeypatch, tmp_path):
    monkeypatch.setenv("IQ_KERNELS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(iq_ops, "warmup", lambda *args, **kwargs: 0, raising=False)
    lines = run("warmup", "--model", "deepseek-v4.1", "--tp", "32", "--arch", "sm_100a").stdout.splitlines()
    assert lines == [
        "Nothing to compile for deepseek-v4.1 with 1 heads on sm_100a.",
        f"  cute: all of them already, in {tmp_path}",
        "  triton: none, as another backend takes these calls",
    ]


def test_warmup_ahead_of_an_unknown_backend_names_the_backend(run, monkeypatch):
    monkeypatch.setattr(_backends, "forced_by_environment", lambda: "foo")
    result = run("warmup", "--arch", "sm_90")
    assert result.exit_code == 1
    assert "backend 'foo' is not known" in result.stderr
    assert "--arch" not in result.stderr


def test_warmup_tells_a_backend_that_is_not_installed(monkeypatch):
    from iq_ops import _ahead

    absent = _backends.Backend("cute", "iq-kernels-cute", None, 0, {}, "absent", "not installed. Remedy: pip")
    monkeypatch.setattr(_backends, "backends", lambda: (absent,))
    lines = list(_ahead.report("deepseek-v4", 8, "sm_90", 2, {"cute": 0}))
    assert lines == [
        "2 kernels compiled or loaded for deepseek-v4 with 8 heads on sm_90.",
        "  cute: not installed. Remedy: pip",
    ]


@pytest.mark.parametrize("command", [[], ["doctor"], ["demo"], ["quantize"], ["verify"], ["warmup"]])
def test_help(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    if command == ["verify"]:
        assert all(name in result.stdout for name in (*dumps.INPUTS, "q_fp8", "q_packed", "q_scale", "weights_out"))


def test_warmup_passes_the_model_on(run, monkeypatch):

    calls = []
    monkeypatch.setattr(iq_ops, "warmup", lambda *args, **kwargs: calls.append((args, kwargs)) or 3, raising=False)
    result = run("warmup", "--model", "deepseek-v3.2", "--tp", "8", "--arch", "sm_100a")
    assert result.exit_code == 0, result.output
    assert calls == [((8, 128, 64, ("fp8",)), {"spec": specs.DEEPSEEK_V3_2, "arch": "sm_100a", "progress": True})]
    assert "3 kernels" in result.stdout
    assert callable(_warmup.warmup)


@pytest.fixture
def source(make_inputs, tmp_path):
    inputs = make_inputs(**SHARD_OF_V4)
    path = tmp_path / "in.safetensors"
    files.write(path, {name: getattr(inputs, name) for name in dumps.INPUTS}, {})
    return path


def test_quantize_never_overwrites_its_input(run, source):
    before = source.read_bytes()
    for target in (source, source.parent / "." / "in.safetensors"):
        result = run("quantize", source, target, "--format", "fp8")
        assert result.exit_code == 2
        assert "it is the input file" in result.stderr
    assert source.read_bytes() == before


def test_quantize_keeps_an_input_that_is_named_as_a_part_of_its_output(run, source, tmp_path):
    part = source.rename(tmp_path / "out.safetensors.part")
    before = part.read_bytes()
    assert run("quantize", part, tmp_path / "out.safetensors", "--format", "fp8").exit_code == 0
    assert part.read_bytes() == before


def test_an_emoji_code_in_a_path_is_left_alone(run, source, tmp_path):
    named = source.rename(tmp_path / ":smile:.safetensors")
    target = tmp_path / ":warning:.safetensors"
    result = run("quantize", named, target, "--format", "fp8", "--head-scale", "0.125")
    assert f"Check it: iq-ops verify {target} --inputs {named}\n" in result.stdout
    verified = " ".join(run("verify", target, "--inputs", named, "--hadamard").stdout.split())
    assert "/:warning:.safetensors, but true is demanded" in verified
    named.write_bytes(b"")
    assert f"{named}: no safetensors file" in run("verify", target, "--inputs", named).stderr


def test_a_path_is_printed_as_it_is(run, source, tmp_path):
    for name in ("a[red].safetensors", "b[/red].safetensors"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        result = run("quantize", source, target, "--format", "fp8")
        assert result.exit_code == 0, result.output
        assert f"Written to {target}\n" in result.stdout


@pytest.mark.parametrize("command", ["quantize", "demo"])
def test_a_backend_that_is_not_there_exits_with_1(source, tmp_path, command):
    arguments = {"quantize": ["quantize", str(source), str(tmp_path / "out"), "--format", "fp8"], "demo": ["demo"]}
    script = [sys.executable, "-m", "iq_ops", *arguments[command]]
    environment = {**os.environ, "IQ_OPS_BACKEND": "Triton "}
    done = subprocess.run(script, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "backend 'Triton ' is not known; known are" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_prints_where_the_terminal_knows_ascii_alone():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "160"}
    environment = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    environment[b"XDG_CACHE_HOME"] = b"/nowhere/\xff"  # no UTF-8 either
    done = subprocess.run([sys.executable, "-m", "iq_ops", "doctor"], capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert b"/nowhere/\\udcff" in done.stdout


def test_doctor_json_stands_alone_on_stdout(run, monkeypatch):
    from iq_ops import doctor

    monkeypatch.setattr(doctor, "_driver", lambda: print("a banner"))
    result = run("doctor", "--json")
    assert json.loads(result.stdout)["problems"] is not None
    assert "a banner" in result.stderr


def test_a_failed_warmup_exits_with_1(run, monkeypatch):

    def fail(*args, **kwargs):
        raise RuntimeError("ptxas fell over")

    monkeypatch.setattr(iq_ops, "warmup", fail, raising=False)
    result = run("warmup")
    assert result.exit_code == 1
    assert "ptxas fell over" in result.stderr


def test_demo_prints_and_draws(run, tmp_path):
    path = tmp_path / "demo.png"
    result = run("demo", "--plot", path)
    assert result.exit_code == 0, result.output
    for words in ("backend", "float8_e4m3fn", "q_packed", "50.0% saved", "73.4% saved", "dB", "recall of the top 512"):
        assert words in result.stdout
    assert path.read_bytes().startswith(b"\x89PNG")


def test_demo_without_matplotlib_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("demo", "--plot", tmp_path / "demo.png")
    assert result.exit_code == 1
    assert "pip install 'iq-ops[plot]'" in result.stderr
    with pytest.raises(demo_plot.PlotUnavailableError):
        demo_plot.require()
