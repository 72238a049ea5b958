"""Shared pytest hooks: GPU tests skip without a GPU, and fail instead under IQ_REQUIRE_GPU=1."""

from __future__ import annotations

import os

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip (or, under IQ_REQUIRE_GPU=1, fail) a test marked `gpu` where PyTorch sees no GPU."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if torch.cuda.is_available():
        return
    reason = "needs a GPU, and torch.cuda.is_available() is False"
    if os.environ.get("IQ_REQUIRE_GPU") == "1":
        pytest.fail(f"IQ_REQUIRE_GPU=1: {reason}", pytrace=False)
    pytest.skip(reason)
