"""Indexer-Q kernels in Triton. Importing this imports neither triton nor torch."""

from ._version import __version__

__all__ = ["__version__"]
