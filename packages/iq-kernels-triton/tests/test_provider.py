"""What the provider answers iq-ops: description, refusals, functions, warmup, and errors of compiling."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

import iq_kernels_triton
from iq_kernels_triton import _abi, provider
from iq_kernels_triton.indexer_q import compiling

from .test_config import WORKLOAD


def request(target="sm_90", device_type="cuda", op="indexer_q_fp8", shape=(4, 64, 128)):
    facts = {"q": _abi.TensorFacts("bfloat16", shape, (shape[1] * shape[2], shape[2], 1), 16)}
    return _abi.Request(op, device_type, 0, target, facts, "interleaved", "tail", False)


@pytest.fixture(autouse=True)
def _forget_the_import_problem():
    provider._import_problem.cache_clear()
    yield
    provider._import_problem.cache_clear()


def test_description():
    description = provider.describe()
    assert (description.backend, description.distribution, description.preference) == (
        "triton",
        "iq-kernels-triton",
        100,
    )
    assert description.version == iq_kernels_triton.__version__
    assert description.abi == {name: op.version for name, op in _abi.OPS.items()}


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_90", "sm_100", "sm_121", "gfx942", "gfx950"])
def test_it_runs_on_the_targets_it_names(target):
    assert provider.why_not(request(target)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": "sm_75"}, "sm_75 is older than sm_80"),
        ({"target": "gfx906"}, "never compiled for gfx906"),
        ({"device_type": "xpu", "target": "xpu"}, "'xpu' devices"),
        ({"device_type": "cpu", "target": "cpu"}, "TRITON_INTERPRET=1 before importing triton"),
        ({"op": "indexer_q_int8"}, "no kernel for indexer_q_int8"),
        ({"shape": (1 << 28, 64, 128)}, "programs of one launch"),
    ],
)
def test_what_it_refuses_and_why(monkeypatch, changes, reason):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert reason in provider.why_not(request(**changes))


def test_a_missing_triton_is_said_to_be_missing(monkeypatch):
    find_spec = provider.importlib.util.find_spec
    monkeypatch.setattr(
        provider.importlib.util, "find_spec", lambda name: None if name == "triton" else find_spec(name)
    )
    assert provider.why_not(request()) == "triton is not installed."


def test_a_broken_triton_is_told_from_a_missing_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # `import triton` raises ModuleNotFoundError
    monkeypatch.setattr(provider.importlib.util, "find_spec", lambda name: object())
    assert "triton cannot be imported: ModuleNotFoundError" in provider.why_not(request())


def test_an_old_triton_is_refused(monkeypatch):
    monkeypatch.setattr("triton.__version__", "3.4.0")
    assert "triton 3.4.0 is older than 3.5" in provider.why_not(request())


@pytest.mark.parametrize("interpret", ["0", "1"])
def test_the_interpreter_takes_cpu_tensors_and_the_compiler_gpu_tensors(interpret):
    code = (
        "from iq_kernels_triton import _abi, provider\n"
        "q = {'q': _abi.TensorFacts('bfloat16', (4, 8, 128), (1024, 128, 1), 16)}\n"
        "for device, target in (('cpu', 'cpu'), ('cuda', 'sm_90')):\n"
        "    request = _abi.Request('indexer_q_fp8', device, 0, target, q, 'neox', 'tail', False)\n"
        "    print(provider.why_not(request) is None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TRITON_INTERPRET": interpret},
    )
    assert done.stdout.split() == (["True", "False"] if interpret == "1" else ["False", "True"])


def test_load_gives_the_raw_functions():
    assert provider.load("indexer_q_fp8") is iq_kernels_triton.indexer_q_fp8
    assert provider.load("indexer_q_mxfp4") is iq_kernels_triton.indexer_q_mxfp4
    with pytest.raises(KeyError):
        provider.load("indexer_q_int8")


def test_warmup_compiles_each_variant_once_without_a_device(monkeypatch):
    compiled = []

    def fake(source, target, options):
        compiled.append((target.arch, options["num_warps"], options["enable_fp_fusion"]))
        return object()

    monkeypatch.setattr(compiling, "_loaded", {})
    monkeypatch.setattr(compiling.triton, "compile", fake)
    jobs = provider.warmup_jobs(replace(WORKLOAD, device_index=None))
    assert provider.compile_count() == 0
    for _ in range(2):
        for label, job in jobs:
            assert "sm_90" in label
            job()
    assert provider.compile_count() == len(compiled) == len(jobs) == 5
    assert {(arch, fusion) for arch, _, fusion in compiled} == {(90, False)}


def test_a_workload_on_the_cpu_has_nothing_to_compile():
    assert provider.warmup_jobs(replace(WORKLOAD, target="cpu")) == []


@pytest.mark.parametrize("target", ["sm_70", "sm_banana", "sm_", "gfx1100", "", "SM_90"])
def test_a_target_that_is_refused_has_nothing_to_compile(target):
    assert provider.why_not(request(target)) is not None
    assert provider.warmup_jobs(replace(WORKLOAD, target=target, device_index=None)) == []


def test_a_target_unknown_to_llvm_is_not_compiled_ahead():
    assert provider.warmup_jobs(replace(WORKLOAD, target="sm_99", device_index=None)) == []


@pytest.mark.parametrize(("target", "plain"), [("sm_90a", "sm_90"), ("sm_100a", "sm_100"), ("sm_120f", "sm_120")])
def test_an_arch_specific_target_compiles_what_its_device_runs(target, plain):
    assert provider.why_not(request(target)) is None
    for name in (target, plain):
        assert len(provider.warmup_jobs(replace(WORKLOAD, target=name, device_index=None))) == 5
    assert compiling.gpu_target(target) == compiling.gpu_target(plain)


def test_a_failing_compiler_raises_compile_error_with_its_message(monkeypatch):
    def broken(*args, **kwargs):
        raise OSError("ptxas is missing")

    monkeypatch.setattr(compiling, "_loaded", {})
    monkeypatch.setattr(compiling.triton, "compile", broken)
    (_, job), *_ = provider.warmup_jobs(replace(WORKLOAD, device_index=None))
    with pytest.raises(provider.CompileError, match=r"could not compile indexer_q_fp8 sm_90 .*ptxas is missing"):
        job()
    assert provider.compile_count() == 0
    assert issubclass(provider.CompileError, RuntimeError)


def test_environment_names_versions_folder_and_overrides(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere/else")
    facts = provider.environment()
    assert facts["triton"].startswith("3.")
    assert facts["TRITON_CACHE_DIR"] == facts["cache"] == "/somewhere/else"
