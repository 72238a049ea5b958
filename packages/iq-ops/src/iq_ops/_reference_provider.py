"""The reference backend as a provider: the same functions that a kernel package's `provider.py` has."""

from __future__ import annotations

from collections.abc import Callable

from . import _abi
from ._version import __version__


class CompileError(RuntimeError):
    """Never raised: the reference compiles nothing."""


def describe() -> _abi.Description:
    """Every operation at this version of the ABI, at the lowest preference."""
    return _abi.Description("reference", "iq-ops", __version__, 0, {name: op.version for name, op in _abi.OPS.items()})


def why_not(request: _abi.Request) -> str | None:
    """Take every request, on any device."""
    return None


def load(op: str) -> Callable[..., None]:
    """Return the raw function of an operation."""
    from . import reference

    raw: Callable[..., None] = getattr(reference, op)
    return raw


def warmup_jobs(workload: _abi.Workload) -> list[tuple[str, Callable[[], None]]]:
    """Nothing to compile."""
    return []


def compile_count() -> int:
    """Nothing is ever compiled."""
    return 0


def environment() -> dict[str, str]:
    """Say how many tokens' worth of memory a pass takes."""
    from . import reference

    return {"chunk elements": str(reference.CHUNK_ELEMENTS)}
