"""vLLM: swap its DeepSeek-V4 `fused_indexer_q_rope_quant` for the one of iq_ops, and back.

The call, the structure and the dtypes stay; docs/engines.md says which bits differ. The function of that name in vLLM's
DeepSeek-V3.2 and GLM path takes `is_neox` where this one takes `use_fp4`; it is another function and stays untouched.
"""

from __future__ import annotations

import functools

from iq_ops.indexer import fused_indexer_q_rope_quant
from iq_ops.specs import DEEPSEEK_V4, IndexerQSpec

from ._swap import Swap

_SWAP = Swap(
    "vLLM",
    "vllm",
    (
        "vllm.models.deepseek_v4.common.ops.fused_indexer_q",
        "vllm.v1.attention.ops.deepseek_v4_ops.fused_indexer_q",  # before the models had packages of their own
    ),
)


def install(*, spec: IndexerQSpec = DEEPSEEK_V4) -> tuple[str, ...]:
    """Swap vLLM's function for ours in every module that holds it; return the places, as "module.attribute".

    Call it before the model is built: later `from ... import` gets ours, but a closure that holds vLLM's keeps it.
    Repeating it is harmless. spec: DEEPSEEK_V4_HADAMARD for a vLLM whose indexer K cache is Hadamard-transformed; the
    two must agree, or retrieval breaks.

    Raises ImportError without vLLM or its function, RuntimeError where this vLLM's function takes other arguments or
    the GPU exchanges float8_e4m3fnuz. Then nothing is swapped.
    """
    ours = functools.partial(fused_indexer_q_rope_quant, spec=spec)
    return _SWAP.install({"fused_indexer_q_rope_quant": ours})


def uninstall() -> tuple[str, ...]:
    """Put vLLM's function back everywhere, in modules imported since `install` too; return the places."""
    return _SWAP.uninstall()
