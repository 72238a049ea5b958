"""Compile one variant: fake tensors in, a TVM-FFI callable out. Needs no GPU and launches nothing."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute

from iq_kernels_cute import _abi

from . import layout
from .config import WIDE_LOADS, Variant
from .kernel import IndexerQ

DTYPES = {
    "int32": cutlass.Int32,
    "int64": cutlass.Int64,
    "bfloat16": cutlass.BFloat16,
    "float16": cutlass.Float16,
    "float32": cutlass.Float32,
    "uint8": cutlass.Uint8,
}


def compile_variant(variant: Variant, options: str = "") -> Any:
    """Compile `variant` for its architecture; `options` are added to the compiler's."""
    kernel = IndexerQ(variant)
    entry = kernel.fp8 if variant.op == "indexer_q_fp8" else kernel.mxfp4
    return cute.compile(
        entry,
        *fake_arguments(variant),
        options=f"--enable-tvm-ffi --gpu-arch {variant.arch} {options}".rstrip(),
    )


def fake_arguments(v: Variant) -> list[Any]:
    """The arguments of the entry point, as the compiled function will check them."""
    tokens, rows = cute.sym_int(32), cute.sym_int(64)
    sizes = {"T": tokens, "P": rows, "H": v.num_heads, "D": v.head_dim, "R": v.rope_dim}
    sizes |= {"D/2": v.head_dim // 2, "D/32": v.head_dim // 32}
    arguments: list[Any] = []
    outputs: list[Any] = []
    for spec in _abi.OPS[v.op].tensors:
        shape = tuple(sizes[symbol] for symbol in spec.shape)
        dtype = DTYPES[spec.dtypes[0] if len(spec.dtypes) == 1 else getattr(v, f"{spec.name}_dtype")]
        stride, alignment = _layout(v, spec, shape, dtype.width // 8)
        fake = cute.runtime.make_fake_tensor(dtype, shape, stride, assumed_align=alignment)
        (outputs if spec.output else arguments).append(fake)
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return [*arguments, cutlass.Float32(0.0), *outputs, stream]


def _layout(v: Variant, spec: _abi.Tensor, shape: tuple[Any, ...], item_bytes: int) -> tuple[tuple[Any, ...], int]:
    """Strides and alignment of one tensor: constants where the variant is dense, symbols where it is strided."""
    vectorized = spec.output or spec.name in layout.VECTORIZED_INPUTS
    alignment = layout.ALIGNMENT if vectorized else item_bytes
    if v.dense and spec.name == "q" and v.vector == 16 and v.capability >= WIDE_LOADS:
        alignment = layout.WIDE_ALIGNMENT
    if v.dense or spec.output:
        strides, step = [1], 1
        for size in reversed(shape[1:]):
            step *= size
            strides.insert(0, step)
        return tuple(strides), alignment
    if spec.last_dim_contiguous:
        return (*(cute.sym_int(64) for _ in shape[1:]), 1), alignment
    return tuple(cute.sym_int(64) for _ in shape), alignment
