"""Device code of two conversions: to float32, exactly, and to bf16 values, nearest even."""

# ruff: noqa: N803 - constants of a Triton kernel are upper case
# The bodies are in Triton's language, which mypy cannot read.
# mypy: ignore-errors

import triton
import triton.language as tl

FP32_INF_BITS = tl.constexpr(0x7F800000)
FP32_NAN_BITS = tl.constexpr(0x7FC00000)
FP32_NAN_PAIR = tl.constexpr(0x7FC000007FC00000)
BF16_NAN_PAIR = tl.constexpr(0x7FC07FC0)


@triton.jit
def widen(x):
    """Convert to float32, exactly: bf16 by its bits, since the interpreter's conversion loses subnormals."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def unpack(x):
    """Convert what was loaded to float32, exactly: single values, or a tile of words of two bf16 or two float32."""
    if x.dtype == tl.int32:
        even = (x << 16).to(tl.float32, bitcast=True)
        odd = (x & -0x10000).to(tl.float32, bitcast=True)
        return tl.reshape(tl.join(even, odd), [x.shape[0], 2 * x.shape[1]])
    elif x.dtype == tl.int64:
        even = x.to(tl.int32).to(tl.float32, bitcast=True)
        odd = (x >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        return tl.reshape(tl.join(even, odd), [x.shape[0], 2 * x.shape[1]])
    else:
        return widen(x)


@triton.jit
def round_bf16(x, NATIVE_FLOAT: tl.constexpr):
    """Round float32 to the nearest bf16 value, ties to even, as float32."""
    if NATIVE_FLOAT:
        return x.to(tl.bfloat16).to(tl.float32)
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    rounded = tl.where((bits & 0x7FFFFFFF) > FP32_INF_BITS, FP32_NAN_BITS, rounded)
    return rounded.to(tl.float32, bitcast=True)
