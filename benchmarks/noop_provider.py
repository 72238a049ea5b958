"""A backend that does nothing: what a public call costs over it is iq_ops' own overhead."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from iq_ops import _abi, _backends, _library


class CompileError(RuntimeError):
    """Never raised: nothing is compiled."""


def describe() -> _abi.Description:
    """Every operation at the current ABI."""
    return _abi.Description("noop", "benchmarks", "0", 1, {name: op.version for name, op in _abi.OPS.items()})


def why_not(request: _abi.Request) -> None:
    """Take every request."""


def do_nothing(**arguments: Any) -> None:
    """Take a raw call's arguments and return."""


def load(op: str) -> Callable[..., None]:
    """Return the function that does nothing."""
    return do_nothing


def warmup_jobs(workload: _abi.Workload) -> list[tuple[str, Callable[[], None]]]:
    """Nothing to compile."""
    return []


def compile_count() -> int:
    """Nothing is compiled."""
    return 0


def environment() -> dict[str, str]:
    """Nothing to report."""
    return {}


@contextmanager
def installed() -> Iterator[None]:
    """Make this module the only provider that iq_ops finds beside its reference; forget it afterwards."""
    entry = importlib.metadata.EntryPoint("noop", __name__, _abi.ENTRY_POINT_GROUP)
    _forget()
    with mock.patch.object(importlib.metadata, "entry_points", return_value=[entry]):
        _backends.backends()
    yield
    _forget()


def _forget() -> None:
    _backends.reset()
    _library.forget_signatures()
