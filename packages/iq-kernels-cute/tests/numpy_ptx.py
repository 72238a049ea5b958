"""The instructions of `iq_kernels_cute.indexer_q.ptx` that encodings and scales use, on numpy arrays of uint32 words.

With this in the place of `ptx`, the device code itself runs on arrays: every bf16 at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

Words = Any  # an array of uint32, or an int that stands for one


def words(value: Words) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.asarray(value, dtype=np.uint32)


def _halves(value: Words) -> tuple[Any, Any]:
    """Lower and upper bf16 of each word, as float64."""
    pair = words(value)
    low, high = (part.view(np.float32) for part in (low_f32(pair), high_f32(pair)))
    with np.errstate(invalid="ignore"):  # a signaling NaN
        return low.astype(np.float64), high.astype(np.float64)


def _join(low: Any, high: Any) -> Any:
    return words(round_bf16(high)) << np.uint32(16) | words(round_bf16(low))


def round_bf16(values: Any) -> Any:
    """bf16 bits of float64 values, rounded once, nearest even; subnormals are kept, a NaN becomes 0x7FFF."""
    wide = np.asarray(values, dtype=np.float64)
    exponent = np.maximum(np.frexp(wide)[1] - 1, -126)
    step = np.ldexp(1.0, exponent - 7)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.copysign(np.rint(np.where(np.isfinite(wide), wide, 0.0) / step) * step, wide)
        single = np.where(np.isinf(wide), wide, rounded).astype(np.float32)
    return np.where(np.isnan(wide), np.uint32(0x7FFF), single.view(np.uint32) >> np.uint32(16))


def _on_halves(operation: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*operands: Words) -> Any:
        lows, highs = zip(*(_halves(operand) for operand in operands), strict=True)
        with np.errstate(invalid="ignore"):
            return _join(operation(*lows), operation(*highs))

    return apply


def _on_u16(operation: Callable[..., Any]) -> Callable[..., Any]:
    def apply(a: Words, b: Words, capability: int = 90) -> Any:
        low, high = np.uint32(0xFFFF), np.uint32(0xFFFF0000)
        a, b = words(a), words(b)
        return operation(a & low, b & low) | operation(a & high, b & high)

    return apply


# A bf16 product has 16 bits and is exact in float64; a sum with a bf16 loses there only what cannot reach half a step.
fma_bf16x2 = _on_halves(lambda a, b, c: a * b + c)
min_bf16x2 = _on_halves(np.fmin)
max_bf16x2 = _on_halves(np.fmax)
max_magnitude_x2 = _on_u16(np.maximum)
min_magnitude_x2 = _on_u16(np.minimum)


def low_f32(pair: Words) -> Any:
    return words(pair) << np.uint32(16)


def high_f32(pair: Words) -> Any:
    return words(pair) & np.uint32(0xFFFF0000)


def multiply_add_u32(a: Words, factor: int, b: Words) -> Any:
    return words(a) * np.uint32(factor) + words(b)


def permute(a: Words, b: Words, selector: int) -> Any:
    both = [words(source) >> np.uint32(8 * i) & np.uint32(0xFF) for source in (a, b) for i in range(4)]
    result = np.uint32(0)
    for i in range(4):
        nibble = selector >> 4 * i & 0xF
        byte = both[nibble & 7]
        if nibble & 8:  # the sign bit on all eight
            byte = (byte >> np.uint32(7)) * np.uint32(0xFF)
        result = result | byte << np.uint32(8 * i)
    return result


def round_e4m3x4(values: Sequence[Any]) -> Any:
    return _pack([e4m3(words(value).view(np.float32)) for value in values], 8)


def round_e2m1(values: Sequence[Any]) -> Any:
    packed = _pack([e2m1(words(value).view(np.float32)) for value in values], 4)
    return packed if len(values) == 8 else packed | packed << np.uint32(16)


def e4m3(values: Any) -> Any:
    """e4m3fn codes, saturating; of a NaN 0x7F. The oracle: ml_dtypes rounds to nearest even."""
    codes = np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(values), np.uint8(0x7F), codes)


def e2m1(values: Any) -> Any:
    """E2M1 codes, saturating, the sign kept on zero."""
    return np.clip(values, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & np.uint8(0xF)


def _pack(codes: Sequence[Any], bits: int) -> Any:
    result = np.uint32(0)
    for i, code in enumerate(codes):
        result = result | words(code) << np.uint32(bits * i)
    return result
