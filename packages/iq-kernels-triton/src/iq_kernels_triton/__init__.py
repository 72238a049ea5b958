"""Indexer-Q kernels in Triton. Importing this imports neither triton nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .indexer_q.launch import indexer_q_fp8, indexer_q_mxfp4

__all__ = ["__version__", "indexer_q_fp8", "indexer_q_mxfp4"]


def __getattr__(name: str) -> Any:
    if name in ("indexer_q_fp8", "indexer_q_mxfp4"):
        from .indexer_q import launch

        return getattr(launch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
