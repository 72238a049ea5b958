"""Device code of the Walsh-Hadamard transform of a row held as four quarters, in the order of the contract."""

# ruff: noqa: N803 - constants of a Triton kernel are upper case
# The bodies are in Triton's language, which mypy cannot read.
# mypy: ignore-errors

import triton
import triton.language as tl

from .numeric import round_bf16


@triton.jit
def hadamard(x0, x1, x2, x3, D: tl.constexpr, NATIVE_FLOAT: tl.constexpr):
    """Walsh-Hadamard in natural order: strides 1 to D/8 inside the quarters, then D/4 and D/2 between them."""
    x0 = _hadamard_quarter(x0, D // 4)
    x1 = _hadamard_quarter(x1, D // 4)
    x2 = _hadamard_quarter(x2, D // 4)
    x3 = _hadamard_quarter(x3, D // 4)
    x0, x1 = x0 + x1, x0 - x1
    x2, x3 = x2 + x3, x2 - x3
    x0, x2 = x0 + x2, x0 - x2
    x1, x3 = x1 + x3, x1 - x3
    norm: tl.constexpr = D**-0.5
    return (
        round_bf16(x0 * norm, NATIVE_FLOAT),
        round_bf16(x1 * norm, NATIVE_FLOAT),
        round_bf16(x2 * norm, NATIVE_FLOAT),
        round_bf16(x3 * norm, NATIVE_FLOAT),
    )


@triton.jit
def _hadamard_quarter(x, Q: tl.constexpr):
    # A lane holds 8 dims of a quarter, so strides up to 4 stay in its registers.
    x = _butterfly(x, 1, Q)
    x = _butterfly(x, 2, Q)
    x = _butterfly(x, 4, Q)
    if Q > 8:
        x = _butterfly_between_lanes(x, 8, Q)
    if Q > 16:
        x = _butterfly_between_lanes(x, 16, Q)
    if Q > 32:
        x = _butterfly_between_lanes(x, 32, Q)
    return x


@triton.jit
def _butterfly(x, STRIDE: tl.constexpr, Q: tl.constexpr):
    pairs = tl.permute(tl.reshape(x, [x.shape[0], Q // (2 * STRIDE), 2, STRIDE]), [0, 1, 3, 2])
    low, high = tl.split(pairs)
    pairs = tl.permute(tl.join(low + high, low - high), [0, 1, 3, 2])
    return tl.reshape(pairs, [x.shape[0], Q])


@triton.jit
def _butterfly_between_lanes(x, STRIDE: tl.constexpr, Q: tl.constexpr):
    """A butterfly that leaves every value in its lane: one shuffle a value, where a split would change the layout.

    The partner's bits are the sum of both, less one's own, modulo 2**32; the compiler cancels that to the shuffle.
    """
    pairs = tl.reshape(x, [x.shape[0], Q // (2 * STRIDE), 2, STRIDE])
    bits = pairs.to(tl.int32, bitcast=True)
    partner = (tl.sum(bits, 2, keep_dims=True) - bits).to(tl.float32, bitcast=True)
    sign = tl.where(tl.arange(0, 2) == 0, 1.0, -1.0)[None, None, :, None]
    # A product with 1 or -1 is exact, so the fused addition rounds once, as the contract's x + y and x - y do.
    return tl.reshape(tl.fma(pairs, tl.broadcast_to(sign, pairs.shape), partner), [x.shape[0], Q])
