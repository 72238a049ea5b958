"""Indexer-Q kernels in CuTeDSL. Importing this imports neither cutlass nor torch."""

from ._version import __version__

__all__ = ["__version__"]
