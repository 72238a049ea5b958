"""Drop-in functions for inference engines: `vllm` and `sglang`. Importing them imports no engine."""

from . import sglang, vllm

__all__ = ["sglang", "vllm"]
