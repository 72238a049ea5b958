"""Discovery, handshake and selection, shown with planted providers."""

from __future__ import annotations

import importlib.metadata

import pytest

import cases
import iq_ops
from fake_providers import planting, preferring, providing  # noqa: F401 - fixtures


def call(case=None, **options):
    case = case or cases.random_case(1)
    result = iq_ops.fused_indexer_q_rope_quant(*case.positional, **options)
    cases.check_result(case, result)


def state_of(name):
    return next(backend for backend in iq_ops.backends() if backend.name == name)


def test_absent_backends_are_listed_with_the_command_that_installs_them_and_no_warning(recwarn):
    call()
    assert next(backend.name for backend in iq_ops.backends()) == "reference"
    assert state_of("cute").state == state_of("triton").state == "absent"
    assert "python -m pip install 'iq-ops[cute]'" in state_of("cute").reason
    assert not recwarn.list


def test_the_preferred_backend_that_can_takes_the_call(plant, fake_provider, prefer_kernels):
    best, second = fake_provider("cute", preference=200), fake_provider("triton")
    plant(second, best)
    call()
    call()
    assert (best.calls, second.calls) == (["indexer_q_fp8"] * 2, [])
    assert [backend.name for backend in iq_ops.backends()] == ["cute", "triton", "reference"]


def test_a_refusal_passes_the_call_on_and_explain_says_why(plant, fake_provider, prefer_kernels, recwarn):
    best, second = fake_provider("cute", preference=200, refuses="q is not 16-byte aligned"), fake_provider("triton")
    plant(best, second)
    case = cases.random_case(1)
    call(case)
    explanation = iq_ops.explain(*case.positional)
    assert second.calls == ["indexer_q_fp8"]
    assert best.calls == []
    assert explanation.backend == "triton"
    assert explanation.reasons == {"cute": "q is not 16-byte aligned", "reference": "'triton' is preferred"}
    assert "not cute: q is not 16-byte aligned" in str(explanation)
    assert not recwarn.list


def test_the_reference_on_a_gpu_warns_once_with_every_reason(plant, fake_provider, prefer_kernels):
    plant(fake_provider("triton", refuses="no kernel for this one"))
    with pytest.warns(RuntimeWarning, match="slow reference.*cute: not installed.*triton: no kernel for this one"):
        call(cases.random_case(1))
    call(cases.random_case(1, tokens=3))  # a second warning would be an error


def test_on_the_cpu_the_reference_is_taken_unless_a_kernel_is_forced(plant, fake_provider):
    triton = fake_provider("triton")
    plant(triton)
    case = cases.random_case(1)
    call(case)
    assert triton.calls == []
    assert "on the CPU the reference is taken" in iq_ops.explain(*case.positional).reasons["triton"]
    call(case, backend="triton")
    assert triton.calls == ["indexer_q_fp8"]
    assert iq_ops.explain(*case.positional, backend="triton").backend == "triton"


@pytest.mark.parametrize(
    ("version", "command"),
    [(0, "python -m pip install --upgrade iq-kernels-triton"), (2, "python -m pip install --upgrade iq-ops")],
)
def test_another_abi_is_refused_with_the_pip_command_that_mends_it(
    plant, fake_provider, prefer_kernels, version, command
):
    skewed = fake_provider("triton", abi={"indexer_q_fp8": version, "indexer_q_mxfp4": 1})
    other = fake_provider("cute", preference=50)
    plant(skewed, other)
    message = (
        f"iq-kernels-triton 9.9 speaks ABI {version} of indexer_q_fp8, this iq-ops speaks ABI 1. Remedy: {command}"
    )
    with pytest.warns(RuntimeWarning) as caught:
        call()
    assert [message in str(warning.message) for warning in caught] == [True]
    assert (skewed.calls, other.calls) == ([], ["indexer_q_fp8"])
    assert (state_of("triton").state, state_of("triton").reason) == ("skewed", message)
    with pytest.raises(iq_ops.BackendUnavailableError, match="Remedy: " + command):
        call(backend="triton")


def test_a_provider_without_the_operation_is_passed_over(plant, fake_provider, prefer_kernels):
    older, other = fake_provider("cute", preference=200, abi={"indexer_q_mxfp4": 1}), fake_provider("triton")
    plant(older, other)
    call()
    call(cases.random_case(1, fmt="mxfp4"))
    assert (older.calls, other.calls) == (["indexer_q_mxfp4"], ["indexer_q_fp8"])


def explode():
    raise OSError("libcutlass.so: cannot open shared object file")


def test_an_exploding_provider_is_reported_and_takes_no_other_down(plant, fake_provider, prefer_kernels):
    triton = fake_provider("triton")
    plant(triton, cute=explode)
    with pytest.warns(RuntimeWarning, match="'cute' is not used.*OSError: libcutlass.so") as caught:
        call()
    assert len(caught) == 1
    assert triton.calls == ["indexer_q_fp8"]
    assert state_of("cute").state == "broken"
    assert "OSError: libcutlass.so" in iq_ops.explain(*cases.random_case(1).positional).reasons["cute"]
    with pytest.raises(iq_ops.BackendUnavailableError, match=r"OSError: libcutlass\.so"):
        call(backend="cute")


def leave():
    raise SystemExit(3)


class WithoutCompileError:
    """A provider of an older kind, which lacks a member."""

    def __init__(self, provider):
        for name in ("describe", "why_not", "load", "warmup_jobs", "compile_count", "environment"):
            setattr(self, name, getattr(provider, name))


def unnamed(fake_provider):
    provider = fake_provider("cute")
    provider.name = ["cute"]
    return provider


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (lambda make: leave(), "SystemExit: 3"),
        (lambda make: WithoutCompileError(make("cute")), "has no CompileError"),
        (unnamed, "which are strings"),
    ],
)
def test_whatever_a_provider_is_the_others_run(plant, fake_provider, prefer_kernels, load, reason):
    healthy = fake_provider("triton")
    plant(healthy, cute=lambda: load(fake_provider))
    with pytest.warns(RuntimeWarning, match="backend 'cute' is not used"):
        call()
    assert healthy.calls == ["indexer_q_fp8"]
    assert state_of("cute").state == "broken"
    assert reason in state_of("cute").reason


def test_entry_points_that_cannot_be_read_leave_the_reference(monkeypatch):
    def damaged(*, group):
        raise ValueError("no = in entry_points.txt")

    monkeypatch.setattr(importlib.metadata, "entry_points", damaged)
    with pytest.warns(RuntimeWarning, match="entry points cannot be read"):
        call()
    assert [backend.name for backend in iq_ops.backends() if backend.usable] == ["reference"]


def test_a_why_not_or_load_that_raises_passes_the_call_on(plant, fake_provider, prefer_kernels):
    first, second, third = (fake_provider(name, preference=p) for name, p in (("a", 300), ("b", 200), ("c", 150)))
    first.why_not = lambda request: 1 / 0
    second.load = lambda op: 1 / 0
    plant(first, second, third)
    with pytest.warns(RuntimeWarning) as caught:
        call()
    assert [str(warning.message) for warning in caught] == [
        "iq_ops: backend 'a' is passed over: its why_not raised ZeroDivisionError: division by zero",
        "iq_ops: backend 'b' is passed over: loading indexer_q_fp8 raised ZeroDivisionError: division by zero",
    ]
    assert third.calls == ["indexer_q_fp8"]


def test_a_failed_compile_falls_back_with_one_warning_and_is_not_tried_again(plant, fake_provider, prefer_kernels):
    cute, triton = fake_provider("cute", preference=200, compile_error="ptxas: bad target"), fake_provider("triton")
    plant(cute, triton)
    with pytest.warns(RuntimeWarning, match="'cute'.*failed to compile: ptxas: bad target") as caught:
        call(cases.random_case(1))
    assert len(caught) == 1
    call(cases.random_case(1, tokens=5))
    assert (cute.calls, triton.calls) == (["indexer_q_fp8"], ["indexer_q_fp8"] * 2)
    assert "ptxas: bad target" in iq_ops.explain(*cases.random_case(1).positional).reasons["cute"]


def test_a_failed_compile_raises_where_the_backend_was_forced(plant, fake_provider, prefer_kernels):
    cute, triton = fake_provider("cute", preference=200, compile_error="ptxas: bad target"), fake_provider("triton")
    plant(cute, triton)
    with pytest.raises(cute.CompileError, match="ptxas: bad target"):
        call(backend="cute")
    assert triton.calls == []


def test_the_environment_forces_a_backend_and_the_argument_outranks_it(plant, fake_provider, monkeypatch):
    cute, triton = fake_provider("cute", preference=200), fake_provider("triton")
    plant(cute, triton)
    monkeypatch.setenv("IQ_OPS_BACKEND", "triton")
    case = cases.random_case(1)
    call(case)
    assert triton.calls == ["indexer_q_fp8"]
    call(case, backend="cute")
    assert cute.calls == ["indexer_q_fp8"]
    assert iq_ops.explain(*case.positional).forced == "triton"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cute", "'cute' was forced and cannot run indexer_q_fp8: not installed. Remedy: python -m pip install"),
        ("cuda", "backend 'cuda' is not known; known are 'reference', 'cute', 'triton'"),
    ],
)
def test_a_forced_backend_that_is_not_there_is_an_error(name, message):
    case = cases.random_case(1)
    with pytest.raises(iq_ops.BackendUnavailableError, match=message):
        call(case, backend=name)
    explanation = iq_ops.explain(*case.positional, backend=name)
    assert explanation.backend is None
    assert name in explanation.reasons


def test_two_providers_of_one_name_do_not_shadow_each_other_silently(plant, fake_provider):
    first, second = fake_provider("triton"), fake_provider("triton")
    plant(first, second)
    with pytest.warns(RuntimeWarning, match="is ignored: a backend named 'triton' exists already"):
        call(backend="triton")
    assert (first.calls, second.calls) == (["indexer_q_fp8"], [])
