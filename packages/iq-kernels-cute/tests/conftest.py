"""Fixtures: a workload to vary, and a kernel cache of the test's own."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from iq_kernels_cute import _abi, cache

sys.path.insert(0, str(Path(__file__).parent))  # numpy_ptx, registers: pytest's importlib mode adds no folder

MakeWorkload = Callable[..., _abi.Workload]


@pytest.fixture
def make_workload() -> MakeWorkload:
    """DeepSeek-V4 on Hopper, FP8; keywords change fields."""
    base = _abi.Workload(
        op="indexer_q_fp8",
        num_heads=64,
        head_dim=128,
        rope_dim=64,
        positions_dtype="int64",
        cos_sin_cache_dtype="float32",
        weights_dtype="bfloat16",
        weights_out_dtype="float32",
        rope_style="interleaved",
        rope_at="tail",
        hadamard=False,
        target="sm_90",
        device_index=None,
    )
    return lambda **changes: dataclasses.replace(base, **changes)


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty disk cache and nothing in memory; returns the cache's folder."""
    folder = tmp_path / "kernels"
    monkeypatch.setenv("IQ_KERNELS_CACHE_DIR", str(folder))
    monkeypatch.delenv("IQ_KERNELS_CACHE", raising=False)
    monkeypatch.setattr(cache, "_kernels", {})
    monkeypatch.setattr(cache, "_warned", False)
    return folder
