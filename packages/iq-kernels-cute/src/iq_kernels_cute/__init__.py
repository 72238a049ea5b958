"""Indexer-Q kernels in CuTeDSL. Importing this imports neither cutlass nor torch."""

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .indexer_q.launch import indexer_q_fp8, indexer_q_mxfp4

__all__ = ["__version__", "indexer_q_fp8", "indexer_q_mxfp4"]


def __getattr__(name: str) -> Any:
    """Import the raw functions on first use."""
    if name in ("indexer_q_fp8", "indexer_q_mxfp4"):
        from .indexer_q import launch

        return getattr(launch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
