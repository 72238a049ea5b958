"""`warmup`: which backend it warms, at which alignments, for which architecture; shown with planted providers."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

import cases
import iq_ops
from fake_providers import planting, preferring, providing  # noqa: F401 - fixtures
from iq_ops import _abi, cli


def test_warmup_warms_the_backend_that_calls_take(plant, fake_provider, prefer_kernels):
    cute, triton = fake_provider("cute", preference=200), fake_provider("triton")
    plant(cute, triton)
    assert iq_ops.warmup(num_heads=8, spec=iq_ops.specs.GLM_5, device="cpu") == 2
    assert iq_ops.warmup(num_heads=8, spec=iq_ops.specs.GLM_5, device="cpu") == 0
    assert iq_ops.compile_count() == 2
    assert triton.warmed == []
    assert {workload.op for workload in cute.warmed} == set(_abi.OPS)
    workload = cute.warmed[0]
    assert (workload.num_heads, workload.head_dim, workload.rope_dim, workload.rope_at) == (8, 128, 64, "head")
    assert (workload.target, workload.device_index) == ("sm_90", 0)


def test_warmup_also_warms_who_takes_odd_views(plant, fake_provider, prefer_kernels):
    cute, triton = fake_provider("cute", preference=200), fake_provider("triton")
    cute.why_not = lambda request: "misaligned" if request.tensors["q"].alignment < 16 else None
    plant(cute, triton)
    iq_ops.warmup(num_heads=8, formats=("fp8",), device="cpu")
    assert (len(cute.warmed), len(triton.warmed)) == (1, 1)


def test_warmup_for_another_arch_names_it_and_no_device(plant, fake_provider):
    cute = fake_provider("cute", preference=200)
    plant(cute)
    iq_ops.warmup(formats=("mxfp4",), arch="sm_100a")
    assert [(workload.target, workload.device_index) for workload in cute.warmed] == [("sm_100a", None)]


def test_warmup_for_another_arch_without_a_compiler_says_so():
    with pytest.raises(iq_ops.BackendUnavailableError, match="no backend compiles indexer_q_fp8 for sm_100a ahead"):
        iq_ops.warmup(arch="sm_100a")


def test_warmup_falls_back_where_a_compile_fails_and_raises_where_forced(plant, fake_provider, prefer_kernels):
    cute, triton = fake_provider("cute", preference=200, compile_error="no memory"), fake_provider("triton")
    plant(cute, triton)
    with pytest.warns(RuntimeWarning, match="failed to compile: no memory"):
        iq_ops.warmup(formats=("fp8",), device="cpu")
    assert len(triton.warmed) == 1
    with pytest.raises(cute.CompileError):
        iq_ops.warmup(formats=("mxfp4",), device="cpu", backend="cute")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_heads": 0}, ValueError, "num_heads: expected at least one head"),
        ({"head_dim": 96}, ValueError, "head_dim: expected a head dim of 32, 64, 128, 256, got 96"),
        ({"rope_dim": 24}, ValueError, "rope_dim: expected a rotary dim that is a multiple of 16"),
        ({"rope_dim": 256}, ValueError, "rope_dim: expected a rotary dim .* to the head dim 128, got 256"),
        ({"spec": "neox"}, TypeError, "spec: expected an IndexerQSpec, got 'neox'"),
        ({"positions_dtypes": [torch.float32]}, TypeError, r"positions_dtypes: expected torch\.int32 or"),
        ({"cache_dtypes": [torch.float16]}, TypeError, r"cache_dtypes: expected torch\.float32 or"),
        ({"weights_dtypes": [torch.float64]}, TypeError, r"weights_dtypes: expected torch\.bfloat16 or"),
        (
            {"positions_dtypes": torch.int64},
            TypeError,
            r"positions_dtypes: expected a sequence of dtypes, got torch\.int64",
        ),
        (
            {"formats": "fp8"},
            ValueError,
            r"formats: expected a tuple of names, got the string 'fp8'\. Remedy: pass formats=\('fp8',\)\.",
        ),
        ({"weights_out_dtypes": [torch.float16]}, TypeError, r"weights_out_dtypes: expected torch\.float32 or"),
    ],
)
def test_warmup_refuses_what_no_call_can_have(plant, fake_provider, prefer_kernels, changes, error, message):
    provider = fake_provider("triton")
    plant(provider)
    with pytest.raises(error, match=message):
        iq_ops.warmup(device="cpu", **changes)
    assert provider.warmed == []


def test_explain_refuses_what_is_no_spec():
    with pytest.raises(TypeError, match="spec: expected an IndexerQSpec, got 'neox'"):
        iq_ops.explain(*cases.random_case(1).positional, spec="neox")


def test_warmup_refuses_an_unknown_format():
    with pytest.raises(ValueError, match=r"formats: expected 'fp8' or 'mxfp4', got 'int8'\. Remedy"):
        iq_ops.warmup(formats=("int8",))


@pytest.mark.parametrize(
    ("forced", "lines"),
    [
        (
            None,
            [
                "  cute: it is not on a GPU.",
                "  reference: it takes these calls on cpu, and has nothing to compile.",
                "  triton: not installed. Remedy: python -m pip install iq-kernels-triton",
            ],
        ),
        (
            "reference",
            [
                "  cute: 'reference' was forced",
                "  reference: it takes these calls on cpu, and has nothing to compile.",
                "  triton: 'reference' was forced",
            ],
        ),
    ],
)
def test_warmup_without_a_gpu_says_why_each_backend_has_nothing(monkeypatch, plant, fake_provider, forced, lines):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plant(fake_provider("cute", preference=200, refuses="it is not on a GPU."))
    if forced is not None:
        monkeypatch.setenv("IQ_OPS_BACKEND", forced)
    result = CliRunner().invoke(cli.app, ["warmup", "--tp", "8"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "Nothing to compile for deepseek-v4 with 8 heads on cpu.",
        *lines,
        "PyTorch sees no GPU here. To fill the disk cache for one elsewhere: --arch, as --arch sm_90.",
    ]
