"""The indexer query of DeepSeek-style sparse attention: rotated, quantized to FP8 or MXFP4, and weighted, in one pass.

Importing this registers `torch.ops.iq_ops.*` and imports torch, but no kernel package, triton or cutlass, and it does
not initialise CUDA. Environment: IQ_OPS_BACKEND forces a backend (read once, at the first call), IQ_OPS_CHECK=1 checks
the values of every call (read at import).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import specs
from ._backends import BackendUnavailableError, backends
from ._version import __version__
from .indexer import fused_indexer_q_rope_quant, fused_indexer_q_rope_quant_out
from .specs import IndexerQSpec

if TYPE_CHECKING:
    from ._explain import explain
    from ._warmup import compile_count, warmup

__all__ = [
    "BackendUnavailableError",
    "IndexerQSpec",
    "__version__",
    "backends",
    "compile_count",
    "explain",
    "fused_indexer_q_rope_quant",
    "fused_indexer_q_rope_quant_out",
    "specs",
    "warmup",
]

_LAZY = {
    "explain": "._explain",
    "warmup": "._warmup",
    "compile_count": "._warmup",
    "fused_indexer_q_rope_quant_mxfp4_cutedsl": "._deprecated",
    "fused_indexer_q_rope_quant_fp8_cutedsl": "._deprecated",
    "_INDEXER_Q_MXFP4_KERNEL": "._deprecated",
    "_INDEXER_Q_FP8_KERNEL": "._deprecated",
}


def __getattr__(name: str) -> Any:
    """Import a tool, an old name or `integrations` at its first use (PEP 562)."""
    if name == "integrations":
        return importlib.import_module(".integrations", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, "integrations"})
