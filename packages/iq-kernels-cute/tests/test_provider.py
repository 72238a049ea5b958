"""The provider: what it says of itself and of requests, and of installations that are absent, foreign or broken."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pytest

from iq_kernels_cute import _abi, cache, provider, toolchain
from iq_kernels_cute.indexer_q import config

SIZES = {"T": 7, "P": 100, "H": 64, "D": 128, "R": 64, "D/2": 64, "D/32": 4}


def facts(spec: _abi.Tensor) -> _abi.TensorFacts:
    shape = tuple(SIZES[symbol] for symbol in spec.shape)
    strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return _abi.TensorFacts(spec.dtypes[0], shape, strides, 256)


def request_for(op: str, **changes: object) -> _abi.Request:
    tensors = {spec.name: facts(spec) for spec in _abi.OPS[op].tensors}
    request = _abi.Request(op, "cuda", 0, "sm_90", tensors, "interleaved", "tail", False)
    return dataclasses.replace(request, **changes)


def with_tensor(request: _abi.Request, name: str, **changes: object) -> _abi.Request:
    changed = dataclasses.replace(request.tensors[name], **changes)
    return dataclasses.replace(request, tensors={**request.tensors, name: changed})


def test_description():
    description = provider.describe()
    assert (description.backend, description.preference) == ("cute", 200)
    assert description.abi == {name: op.version for name, op in _abi.OPS.items()}


@pytest.mark.parametrize("op", _abi.OPS)
@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"])
def test_runs_every_format_from_ampere_on(op, target):
    assert provider.why_not(request_for(op, target=target)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device_type": "cpu", "target": "cpu"}, "cpu"),
        ({"target": "gfx942"}, "gfx942"),
        ({"target": "sm_75"}, "sm_80 or later"),
        ({"target": "sm_999"}, "does not know sm_999a"),
    ],
)
def test_refuses_targets(changes, words):
    assert words in provider.why_not(request_for("indexer_q_fp8", **changes))


@pytest.mark.parametrize("op", _abi.OPS)
def test_refuses_what_is_not_16_byte_aligned(op):
    request = request_for(op)
    aligned = [name for name in request.tensors if name not in ("positions", "weights")]
    for name in aligned:
        assert name in provider.why_not(with_tensor(request, name, alignment=8))
        assert provider.why_not(with_tensor(request, name, alignment=16)) is None
    for name in ("positions", "weights"):
        assert provider.why_not(with_tensor(request, name, alignment=2)) is None
    assert "dim 0" in provider.why_not(with_tensor(request, "q", strides=(8196, 128, 1)))
    assert "dim 1" in provider.why_not(with_tensor(request, "q", strides=(8192, 132, 1)))
    assert provider.why_not(with_tensor(request, "q", strides=(128, 1024, 1))) is None
    assert "dim 0" in provider.why_not(with_tensor(request, "cos_sin_cache", strides=(66, 1)))
    assert provider.why_not(with_tensor(request, "cos_sin_cache", strides=(68, 1))) is None


def test_strides_of_single_dims_do_not_matter():
    request = request_for("indexer_q_fp8")
    one = dataclasses.replace(request.tensors["q"], shape=(1, 64, 128), strides=(3, 128, 1))
    assert provider.why_not(dataclasses.replace(request, tensors={**request.tensors, "q": one})) is None


def test_refuses_more_rows_than_are_numbered():
    request = request_for("indexer_q_fp8")
    most = config.MAX_ROWS // 64
    assert provider.why_not(with_tensor(request, "q", shape=(most, 64, 128))) is None
    assert "rows" in provider.why_not(with_tensor(request, "q", shape=(most + 1, 64, 128)))


def test_load_gives_the_raw_functions():
    for op in _abi.OPS:
        assert provider.load(op).__name__ == op
    with pytest.raises(KeyError):
        provider.load("indexer_k_fp8")


@pytest.mark.parametrize("op", _abi.OPS)
def test_warmup_fills_the_disk_for_a_gpu_that_is_not_here(cold: Path, make_workload, op):
    jobs = provider.warmup_jobs(make_workload(op=op, target="sm_100a"))
    assert len({label for label, _ in jobs}) == len(jobs) > 1
    before = provider.compile_count()
    for _, compile_one in jobs:
        compile_one()
    assert provider.compile_count() == before + len(jobs)
    assert len(list(cold.glob(f"{op}-sm_100a-*.o"))) == len(jobs)
    for _, compile_one in jobs:
        compile_one()
    assert provider.compile_count() == before + len(jobs)


def test_no_warmup_where_nothing_runs(make_workload):
    for target in ("gfx942", "cpu", "sm_75", "sm_999"):
        assert provider.warmup_jobs(make_workload(target=target)) == []


def test_environment(monkeypatch, cold: Path):
    found = provider.environment()
    assert found["CuTeDSL"] == "works"
    assert found["kernel cache"] == str(cold)
    monkeypatch.setenv("IQ_KERNELS_CACHE", "0")
    assert "off" in provider.environment()["kernel cache"]


def run_python(code: str, path: Path | None = None) -> str:
    """Standard output of a new process, with `path` before everything else on sys.path."""
    program = f"import sys; sys.path.insert(0, {str(path)!r})\n{code}" if path else code
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def test_importing_the_provider_is_cheap():
    code = "import sys, iq_kernels_cute.provider as p; p.describe(); p.compile_count(); "
    assert (
        run_python(code + "print([m for m in ('torch', 'cutlass', 'tvm_ffi', 'triton') if m in sys.modules])") == "[]"
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "not CuTeDSL's"),  # an empty package
        ("class Metric: pass", "not CuTeDSL's"),  # a package of that name that does something else
        ("raise ImportError('libcuda.so.1: cannot open shared object file')", "libcuda.so.1"),
        ("raise OSError('undefined symbol')", "is broken (OSError: undefined symbol)"),
    ],
)
def test_foreign_or_broken_cutlass(tmp_path: Path, source: str, words: str):
    package = tmp_path / "cutlass"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    said = run_python("from iq_kernels_cute import toolchain; print(toolchain.problem())", tmp_path)
    assert words in said
    assert "Remedy: python -m pip install" in said


def test_cutlass_with_another_cute(tmp_path: Path):
    package = tmp_path / "cutlass" / "cute"
    package.mkdir(parents=True)
    (tmp_path / "cutlass" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    said = run_python("from iq_kernels_cute import toolchain; print(toolchain.problem())", tmp_path)
    assert "not CuTeDSL's" in said


@pytest.mark.parametrize(
    ("before", "after"),
    [("enable()", ["0", "True 500 0"]), ("disable()", ["500", "False 500 0"]), ("freeze()", ["0", "True 500 1"])],
)
def test_the_import_collects_no_garbage_and_leaves_the_collector_alone(tmp_path: Path, before: str, after: list[str]):
    (tmp_path / "cutlass.py").write_text("import gc\nprint(gc.get_threshold()[0])\nraise ImportError")
    code = f"""
import contextlib, gc
from iq_kernels_cute import toolchain
gc.unfreeze()  # what the interpreter may have frozen
gc.set_threshold(500, 5, 5)
gc.{before}
with contextlib.suppress(ImportError):
    toolchain.module("cutlass")
print(gc.isenabled(), gc.get_threshold()[0], int(gc.get_freeze_count() > 0))
"""
    assert run_python(code, tmp_path).splitlines() == after


def test_absent_cutlass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toolchain, "version", lambda name: None if name == "nvidia-cutlass-dsl" else "1.0")
    toolchain.problem.cache_clear()
    try:
        said = toolchain.problem()
    finally:
        monkeypatch.undo()
        toolchain.problem.cache_clear()
    assert said.startswith("nvidia-cutlass-dsl is not installed")
    assert "pip install nvidia-cutlass-dsl" in said


def test_a_request_meets_a_broken_toolchain(monkeypatch: pytest.MonkeyPatch, make_workload, cold: Path):
    monkeypatch.setattr(toolchain, "problem", lambda: "the module cutlass is broken (OSError: x).")
    assert provider.why_not(request_for("indexer_q_fp8")) == "the module cutlass is broken (OSError: x)."
    assert provider.warmup_jobs(make_workload()) == []
    with pytest.raises(provider.CompileError, match="is broken"):
        cache.get(config.choose(make_workload(), 1, dense=True))
