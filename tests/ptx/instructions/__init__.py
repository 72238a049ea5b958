"""The instructions, by family. `pure.py` holds the registry of those that compute registers from registers."""

from . import compare, control, convert, data, floating, integer, logic, matrix, pure, warp

__all__ = ["compare", "control", "convert", "data", "floating", "integer", "logic", "matrix", "pure", "warp"]
