"""`doctor` tells the truth and never raises, whatever breaks under it."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess

import pytest
import torch
from typer.testing import CliRunner

from iq_ops import _backends, cli, doctor

PROBES = [
    "_python", "_torch", "_driver", "_devices", "_backends", "_calls", "_cache", "_environment", "_problems",
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch):
    for name in ("IQ_OPS_BACKEND", "IQ_KERNELS_CACHE_DIR", "IQ_KERNELS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    _backends.reset()
    yield
    _backends.reset()


def run(*arguments):
    result = CliRunner().invoke(cli.app, ["doctor", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_has_the_facts():
    found = json.loads(run("--json"))
    assert found["torch"]["version"] == torch.__version__
    assert {"reference", "triton", "cute"} <= {backend["name"] for backend in found["backends"]}
    reference = next(backend for backend in found["backends"] if backend["name"] == "reference")
    assert (reference["state"], reference["abi"]) == ("ready", {"indexer_q_fp8": 1, "indexer_q_mxfp4": 1})
    calls = {(call["device"], call["format"]): call["takes"] for call in found["calls"]}
    assert calls["cpu", "fp8"] == calls["cpu", "mxfp4"] == "reference"
    assert len(found["devices"]) == torch.cuda.device_count()


def test_text_has_the_facts():
    text = run()
    for words in (torch.__version__, "reference", "kernel cache", "a DeepSeek-V4 call on"):
        assert words in text


@pytest.mark.parametrize("error", [RuntimeError("boom [/] bang"), SystemExit(3)])
@pytest.mark.parametrize("probe", PROBES)
def test_no_probe_can_take_it_down(monkeypatch, probe, error):
    def explode(*args):
        raise error

    monkeypatch.setattr(doctor, probe, explode)
    found = json.loads(run("--json"))
    name = "iq_ops" if probe == "_iq_ops" else probe.removeprefix("_")
    assert found[name]["error"] == f"{type(error).__name__}: {error}"
    text = run()
    assert "boom" in text or isinstance(error, SystemExit)


class ExplodingEntry:
    name, value, group = "boom", "boom.provider", "iq_ops.backends"

    def load(self):
        raise OSError("libboom.so: cannot open shared object file")


def test_a_broken_provider_is_reported(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **kwargs: [ExplodingEntry()])
    found = json.loads(run("--json"))
    boom = next(backend for backend in found["backends"] if backend["name"] == "boom")
    assert boom["state"] == "broken"
    assert "libboom.so" in boom["reason"]
    assert any("libboom.so" in problem for problem in found["problems"])
    assert {call["takes"] for call in found["calls"] if call["device"] == "cpu"} == {"reference"}


def test_a_provider_whose_environment_explodes(monkeypatch):
    from iq_ops import _reference_provider

    monkeypatch.setattr(_reference_provider, "environment", lambda: 1 / 0)
    found = json.loads(run("--json"))
    reference = next(backend for backend in found["backends"] if backend["name"] == "reference")
    assert "ZeroDivisionError" in reference["environment"]["error"]
    assert "ZeroDivisionError" in run()


def test_overrides_and_an_unknown_forced_backend(monkeypatch, tmp_path):
    monkeypatch.setenv("IQ_OPS_BACKEND", "warp")
    monkeypatch.setenv("IQ_KERNELS_CACHE_DIR", str(tmp_path / "kernels"))
    found = json.loads(run("--json"))
    assert found["environment"]["IQ_OPS_BACKEND"] == "warp"
    assert any("IQ_OPS_BACKEND=warp names no backend" in problem for problem in found["problems"])
    assert found["cache"]["folder"] == str(tmp_path / "kernels")
    assert (found["cache"]["exists"], found["cache"]["writable"], found["cache"]["files"]) == (False, True, 0)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "one.o").write_bytes(b"12345")
    cache = json.loads(run("--json"))["cache"]
    assert (cache["exists"], cache["files"], cache["bytes"]) == (True, 1, 5)
    assert "1 files, 5 bytes" in run()


def test_a_cache_below_a_file_is_a_problem(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("IQ_KERNELS_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    found = json.loads(run("--json"))
    assert found["cache"]["writable"] is False
    assert any("is not writable" in problem for problem in found["problems"])


def test_the_driver_is_read_from_nvidia_smi(monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 580.65.06\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert doctor._driver() == "580.65.06"
    tool.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(subprocess.CalledProcessError):
        doctor._driver()
    assert "CalledProcessError" in json.loads(run("--json"))["driver"]["error"]


@pytest.mark.parametrize(("value", "told"), [("yes", True), ("TRUE", True), ("1", False), ("0", False), ("", False)])
def test_a_check_that_is_not_1_has_no_effect(monkeypatch, value, told):
    monkeypatch.setenv("IQ_OPS_CHECK", value)
    problems = doctor.report()["problems"]
    assert (f"IQ_OPS_CHECK={value} has no effect: set it to 1 to check the values of every call." in problems) is told


def test_a_forced_backend_that_cannot_is_told_with_its_reason(monkeypatch):
    monkeypatch.setenv("IQ_OPS_BACKEND", "cute")
    problems = doctor.report()["problems"]
    assert [problem for problem in problems if problem.startswith("IQ_OPS_BACKEND=cute cannot run fp8 on cpu: CuTeDSL")]
    monkeypatch.setenv("IQ_OPS_BACKEND", "foo")
    _backends.reset()
    assert [problem for problem in doctor.report()["problems"] if "cpu" in problem] == []
