"""Device code of the two indexer-Q kernels: rotate, round, transform, find the scale, encode, store.

One program takes BLOCK_HEADS heads of one token. A row of D dims is held as four quarters, four [BLOCK_HEADS, D/4]
tiles: what pairs dims far apart (NeoX rotary pairs, the two last Hadamard strides) then works between registers of one
thread, and a lane holds neighbouring dims of each quarter, so loads and stores are wide. The pass-through quarters of
a row that is rotated in part cost no rotation.

Arithmetic is that of contract 1: one rounding per operation. The launcher compiles with `enable_fp_fusion=False`, so no
multiplication and addition contract. There is no inline assembly but the two instructions of programmatic dependent
launch, which USE_PDL switches.
"""

import triton
import triton.language as tl

FP8_FLOOR = tl.constexpr(1e-4)
FP8_RECIPROCAL = tl.constexpr(1 / 448)  # 448 is the largest e4m3fn value
FP8_NAN = tl.constexpr(0x7F)
MXFP4_FLOOR = tl.constexpr(6 * 2.0**-126)
MXFP4_RECIPROCAL = tl.constexpr(1 / 6)  # 6 is the largest E2M1 value
E8M0_NAN = tl.constexpr(0xFF)
MX_BLOCK = tl.constexpr(32)
FP32_INF_BITS = tl.constexpr(0x7F800000)
FP32_NAN_BITS = tl.constexpr(0x7FC00000)
# Adding 2**23 to a small positive float32 rounds it to an integer, nearest even, and leaves that in the low bits.
ROUND_TO_INTEGER = tl.constexpr(2.0**23)


@triton.jit
def indexer_q_fp8_kernel(
    positions_ptr,
    q_ptr,
    cache_ptr,
    weights_ptr,
    codes_ptr,
    weights_out_ptr,
    combined_scale,
    num_positions,
    positions_stride,
    q_token_stride,
    q_head_stride,
    cache_stride,
    weights_token_stride,
    weights_head_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    ROPE_START: tl.constexpr,
    NEOX: tl.constexpr,
    HADAMARD: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
    WORDS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """FP8 codes of BLOCK_HEADS rows of one token, and their weights with the row scale folded in."""
    _wait_for_previous_kernel(USE_PDL)
    token, heads = _place(H, BLOCK_HEADS)
    position = tl.load(positions_ptr + token * positions_stride).to(tl.int64)
    x0, x1, x2, x3 = _transformed_row(
        q_ptr + token * q_token_stride, heads, position, cache_ptr, num_positions, q_head_stride, cache_stride,
        H, D, R, ROPE_START, NEOX, HADAMARD, BLOCK_HEADS, NATIVE_FLOAT, WORDS,
    )  # fmt: skip
    low = _larger(_magnitude(x0, NATIVE_FLOAT), _magnitude(x1, NATIVE_FLOAT))
    high = _larger(_magnitude(x2, NATIVE_FLOAT), _magnitude(x3, NATIVE_FLOAT))
    amax_bits = _amax_bits(_larger(low, high), 1, NATIVE_FLOAT)
    poisoned = amax_bits >= FP32_INF_BITS
    exponent = _scale_exponent(amax_bits, FP8_FLOOR, FP8_RECIPROCAL)
    inverse = _power_of_two(254 - exponent)[:, None]

    # A row that is padding or poisoned has one constant byte: it is stored apart, so its arithmetic never matters.
    padding = tl.broadcast_to(position, [BLOCK_HEADS]) < 0
    constant_row = poisoned | padding
    constant = tl.where(padding, 0, tl.full([BLOCK_HEADS], FP8_NAN, tl.uint8)).to(tl.uint8)
    rows = codes_ptr + token * (H * D) + heads * D
    _store_fp8_quarter(rows, 0 * (D // 4), x0 * inverse, constant, constant_row, heads < H, D // 4, NATIVE_FP8, WORDS)
    _store_fp8_quarter(rows, 1 * (D // 4), x1 * inverse, constant, constant_row, heads < H, D // 4, NATIVE_FP8, WORDS)
    _store_fp8_quarter(rows, 2 * (D // 4), x2 * inverse, constant, constant_row, heads < H, D // 4, NATIVE_FP8, WORDS)
    _store_fp8_quarter(rows, 3 * (D // 4), x3 * inverse, constant, constant_row, heads < H, D // 4, NATIVE_FP8, WORDS)

    weights_row = weights_ptr + token * weights_token_stride
    weight = _combined_weight(weights_row, heads, weights_head_stride, combined_scale, H) * _power_of_two(exponent)
    weight = tl.where(poisoned, float("nan"), weight)
    _store_weights(weights_out_ptr + token * H, heads, tl.where(padding, 0.0, weight), H, NATIVE_FLOAT)


@triton.jit
def indexer_q_mxfp4_kernel(
    positions_ptr,
    q_ptr,
    cache_ptr,
    weights_ptr,
    codes_ptr,
    scales_ptr,
    weights_out_ptr,
    combined_scale,
    num_positions,
    positions_stride,
    q_token_stride,
    q_head_stride,
    cache_stride,
    weights_token_stride,
    weights_head_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    ROPE_START: tl.constexpr,
    NEOX: tl.constexpr,
    HADAMARD: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr,
    WORDS: tl.constexpr,
    USE_PDL: tl.constexpr,
):
    """Packed E2M1 codes and e8m0 block scales of BLOCK_HEADS rows of one token, and their weights."""
    _wait_for_previous_kernel(USE_PDL)
    token, heads = _place(H, BLOCK_HEADS)
    position = tl.load(positions_ptr + token * positions_stride).to(tl.int64)
    x0, x1, x2, x3 = _transformed_row(
        q_ptr + token * q_token_stride, heads, position, cache_ptr, num_positions, q_head_stride, cache_stride,
        H, D, R, ROPE_START, NEOX, HADAMARD, BLOCK_HEADS, NATIVE_FLOAT, WORDS,
    )  # fmt: skip
    padding = tl.broadcast_to(position, [BLOCK_HEADS]) < 0
    # Quarters as [BLOCK_HEADS, blocks, dims of a block]; a block of 32 that spans quarters has the same amax in each.
    x0, x1, x2, x3 = _blocks(x0, D), _blocks(x1, D), _blocks(x2, D), _blocks(x3, D)
    m0 = _amax_bits(_magnitude(x0, NATIVE_FLOAT), 2, NATIVE_FLOAT)
    m1 = _amax_bits(_magnitude(x1, NATIVE_FLOAT), 2, NATIVE_FLOAT)
    m2 = _amax_bits(_magnitude(x2, NATIVE_FLOAT), 2, NATIVE_FLOAT)
    m3 = _amax_bits(_magnitude(x3, NATIVE_FLOAT), 2, NATIVE_FLOAT)
    if D < 4 * MX_BLOCK:
        m0 = tl.maximum(m0, m1)
        m2 = tl.maximum(m2, m3)
        if D < 2 * MX_BLOCK:
            m0 = tl.maximum(m0, m2)
            m2 = m0
        m1 = m0
        m3 = m2
    codes = codes_ptr + token * (H * (D // 2)) + heads * (D // 2)
    _store_fp4_quarter(codes, 0 * (D // 8), x0, m0, padding, heads < H, WORDS)
    _store_fp4_quarter(codes, 1 * (D // 8), x1, m1, padding, heads < H, WORDS)
    _store_fp4_quarter(codes, 2 * (D // 8), x2, m2, padding, heads < H, WORDS)
    _store_fp4_quarter(codes, 3 * (D // 8), x3, m3, padding, heads < H, WORDS)

    scales = scales_ptr + token * (H * (D // MX_BLOCK)) + heads * (D // MX_BLOCK)
    if WORDS and D == 4 * MX_BLOCK:
        low = _scale_byte(m0, padding) | (_scale_byte(m1, padding) << 8)
        high = _scale_byte(m2, padding) | (_scale_byte(m3, padding) << 8)
        words = tl.reshape(low | (high << 16), [BLOCK_HEADS])
        tl.store(scales.to(tl.pointer_type(tl.int32)), words, mask=heads < H)
    else:
        _store_scales(scales, 0, m0, padding, heads < H)
        if D > MX_BLOCK:
            _store_scales(scales, D // 2 // MX_BLOCK, m2, padding, heads < H)
        if D > 2 * MX_BLOCK:
            _store_scales(scales, D // 4 // MX_BLOCK, m1, padding, heads < H)
            _store_scales(scales, 3 * (D // 4) // MX_BLOCK, m3, padding, heads < H)

    weights_row = weights_ptr + token * weights_token_stride
    weight = _combined_weight(weights_row, heads, weights_head_stride, combined_scale, H)
    _store_weights(weights_out_ptr + token * H, heads, tl.where(padding, 0.0, weight), H, NATIVE_FLOAT)


@triton.jit
def _wait_for_previous_kernel(USE_PDL: tl.constexpr):
    # Dependents first: they may start to launch at once, and wait in turn before they read what this kernel writes.
    if USE_PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _place(H: tl.constexpr, BLOCK_HEADS: tl.constexpr):
    """Return this program's token (64 bits: strides may reach 2**30 and more) and its heads."""
    programs_per_token: tl.constexpr = (H + BLOCK_HEADS - 1) // BLOCK_HEADS
    program = tl.program_id(0)
    token = (program // programs_per_token).to(tl.int64)
    return token, (program % programs_per_token) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)


@triton.jit
def _transformed_row(
    q_ptr, heads, position, cache_ptr, num_positions, q_head_stride, cache_stride,
    H: tl.constexpr, D: tl.constexpr, R: tl.constexpr, ROPE_START: tl.constexpr, NEOX: tl.constexpr,
    HADAMARD: tl.constexpr, BLOCK_HEADS: tl.constexpr, NATIVE_FLOAT: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Steps 1 to 3 of the contract: four [BLOCK_HEADS, D/4] float32 tiles that hold bf16 values."""
    Q: tl.constexpr = D // 4
    rows = q_ptr + heads * q_head_stride
    x0 = _load_quarter(rows, heads, 0 * Q, H, Q, BLOCK_HEADS, WORDS)
    x1 = _load_quarter(rows, heads, 1 * Q, H, Q, BLOCK_HEADS, WORDS)
    x2 = _load_quarter(rows, heads, 2 * Q, H, Q, BLOCK_HEADS, WORDS)
    x3 = _load_quarter(rows, heads, 3 * Q, H, Q, BLOCK_HEADS, WORDS)
    cache = cache_ptr + position * cache_stride
    if NEOX and R == D:
        x0, x2 = _rotate_quarters(x0, x2, cache, 0 * Q, position, num_positions, Q, R, NATIVE_FLOAT)
        x1, x3 = _rotate_quarters(x1, x3, cache, 1 * Q, position, num_positions, Q, R, NATIVE_FLOAT)
    elif NEOX and R == 2 * Q and ROPE_START == 0:
        x0, x1 = _rotate_quarters(x0, x1, cache, 0, position, num_positions, Q, R, NATIVE_FLOAT)
    elif NEOX and R == 2 * Q:
        x2, x3 = _rotate_quarters(x2, x3, cache, 0, position, num_positions, Q, R, NATIVE_FLOAT)
    elif NEOX:
        x0 = _rotate_neox(
            x0, rows, heads, cache, 0 * Q, position, num_positions, H, Q, R, ROPE_START, BLOCK_HEADS, NATIVE_FLOAT
        )
        x1 = _rotate_neox(
            x1, rows, heads, cache, 1 * Q, position, num_positions, H, Q, R, ROPE_START, BLOCK_HEADS, NATIVE_FLOAT
        )
        x2 = _rotate_neox(
            x2, rows, heads, cache, 2 * Q, position, num_positions, H, Q, R, ROPE_START, BLOCK_HEADS, NATIVE_FLOAT
        )
        x3 = _rotate_neox(
            x3, rows, heads, cache, 3 * Q, position, num_positions, H, Q, R, ROPE_START, BLOCK_HEADS, NATIVE_FLOAT
        )
    else:
        x0 = _rotate_interleaved(x0, cache, 0 * Q - ROPE_START, position, num_positions, Q, R, BLOCK_HEADS, NATIVE_FLOAT)
        x1 = _rotate_interleaved(x1, cache, 1 * Q - ROPE_START, position, num_positions, Q, R, BLOCK_HEADS, NATIVE_FLOAT)
        x2 = _rotate_interleaved(x2, cache, 2 * Q - ROPE_START, position, num_positions, Q, R, BLOCK_HEADS, NATIVE_FLOAT)
        x3 = _rotate_interleaved(x3, cache, 3 * Q - ROPE_START, position, num_positions, Q, R, BLOCK_HEADS, NATIVE_FLOAT)
    if HADAMARD:
        x0, x1, x2, x3 = _hadamard(x0, x1, x2, x3, D, BLOCK_HEADS, NATIVE_FLOAT)
    return x0, x1, x2, x3


@triton.jit
def _load_quarter(
    rows, heads, first_dim: tl.constexpr, H: tl.constexpr, Q: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """Load a quarter as float32: as 32-bit words of two bf16, which widen by one instruction a value, or one by one."""
    if WORDS:
        words = rows.to(tl.pointer_type(tl.int32)) + first_dim // 2
        words = _load_rows(words, heads, tl.arange(0, Q // 2), H, BLOCK_HEADS)
        even = (words << 16).to(tl.float32, bitcast=True)
        odd = (words & -0x10000).to(tl.float32, bitcast=True)
        return tl.reshape(tl.join(even, odd), [BLOCK_HEADS, Q])
    else:
        return _widen(_load_rows(rows, heads, first_dim + tl.arange(0, Q), H, BLOCK_HEADS))


@triton.jit
def _load_rows(rows, heads, dims, H: tl.constexpr, BLOCK_HEADS: tl.constexpr):
    pointers = rows[:, None] + dims[None, :]
    if H % BLOCK_HEADS == 0:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=(heads < H)[:, None], other=0)


@triton.jit
def _widen(x):
    """Convert to float32, exactly: bf16 by its bits, since the interpreter's conversion loses subnormals."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def _load_angles(cache, pair, wanted, position, num_positions, R: tl.constexpr):
    """Cosines and sines of the given pairs; NaN where they are not wanted or the position is outside the cache."""
    positions = tl.broadcast_to(position, [pair.shape[0]])
    mask = (positions >= 0) & (positions < num_positions)
    if wanted is not None:
        mask = mask & wanted
    cos = _widen(tl.load(cache + pair, mask=mask, other=float("nan")))
    sin = _widen(tl.load(cache + R // 2 + pair, mask=mask, other=float("nan")))
    return cos[None, :], sin[None, :]


@triton.jit
def _rotate_quarters(
    a, b, cache, first_pair: tl.constexpr, position, num_positions, Q: tl.constexpr, R: tl.constexpr,
    NATIVE_FLOAT: tl.constexpr,
):  # fmt: skip
    """NeoX pairs that lie whole quarters apart: rotate one quarter against another."""
    cos, sin = _load_angles(cache, first_pair + tl.arange(0, Q), None, position, num_positions, R)
    return _round_bf16(a * cos - b * sin, NATIVE_FLOAT), _round_bf16(b * cos + a * sin, NATIVE_FLOAT)


@triton.jit
def _rotate_neox(
    x, rows, heads, cache, first_dim: tl.constexpr, position, num_positions, H: tl.constexpr, Q: tl.constexpr,
    R: tl.constexpr, ROPE_START: tl.constexpr, BLOCK_HEADS: tl.constexpr, NATIVE_FLOAT: tl.constexpr,
):  # fmt: skip
    """NeoX pairs at any distance: read each dim's partner again, from L1."""
    rotary: tl.constexpr = first_dim - ROPE_START  # rotary index of the quarter's first dim
    if rotary + Q <= 0 or rotary >= R:
        return x
    index = rotary + tl.arange(0, Q)
    is_rotary = (index >= 0) & (index < R)
    is_first = index < R // 2
    partner = tl.where(is_rotary, tl.where(is_first, index + R // 2, index - R // 2), 0)
    other = _widen(_load_rows(rows, heads, ROPE_START + partner, H, BLOCK_HEADS))
    pair = tl.where(is_first, index, index - R // 2)
    cos, sin = _load_angles(cache, pair, is_rotary, position, num_positions, R)
    product = x * cos
    rotated = tl.where(is_first[None, :], product - other * sin, product + other * sin)
    return tl.where(is_rotary[None, :], _round_bf16(rotated, NATIVE_FLOAT), x)


@triton.jit
def _rotate_interleaved(
    x, cache, rotary: tl.constexpr, position, num_positions, Q: tl.constexpr, R: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, NATIVE_FLOAT: tl.constexpr,
):  # fmt: skip
    """Pairs of neighbouring dims; `rotary` is the rotary index of the quarter's first dim, below 0 before the part."""
    if rotary + Q <= 0 or rotary >= R:
        return x
    pair = rotary // 2 + tl.arange(0, Q // 2)
    is_rotary = (pair >= 0) & (pair < R // 2)
    whole: tl.constexpr = rotary >= 0 and rotary + Q <= R
    cos, sin = _load_angles(cache, pair, None if whole else is_rotary, position, num_positions, R)
    a, b = tl.split(tl.reshape(x, [BLOCK_HEADS, Q // 2, 2]))
    rotated_a = a * cos - b * sin
    rotated_b = b * cos + a * sin
    if not whole:
        rotated_a = tl.where(is_rotary[None, :], rotated_a, a)
        rotated_b = tl.where(is_rotary[None, :], rotated_b, b)
    # Dims that pass hold bf16 values already, which the rounding leaves alone.
    return _round_bf16(tl.reshape(tl.join(rotated_a, rotated_b), [BLOCK_HEADS, Q]), NATIVE_FLOAT)


@triton.jit
def _hadamard(x0, x1, x2, x3, D: tl.constexpr, BLOCK_HEADS: tl.constexpr, NATIVE_FLOAT: tl.constexpr):
    """Walsh-Hadamard in natural order: strides 1 to D/8 inside the quarters, then D/4 and D/2 between them."""
    x0 = _hadamard_quarter(x0, D // 4, BLOCK_HEADS)
    x1 = _hadamard_quarter(x1, D // 4, BLOCK_HEADS)
    x2 = _hadamard_quarter(x2, D // 4, BLOCK_HEADS)
    x3 = _hadamard_quarter(x3, D // 4, BLOCK_HEADS)
    x0, x1 = x0 + x1, x0 - x1
    x2, x3 = x2 + x3, x2 - x3
    x0, x2 = x0 + x2, x0 - x2
    x1, x3 = x1 + x3, x1 - x3
    norm: tl.constexpr = D**-0.5
    return (
        _round_bf16(x0 * norm, NATIVE_FLOAT),
        _round_bf16(x1 * norm, NATIVE_FLOAT),
        _round_bf16(x2 * norm, NATIVE_FLOAT),
        _round_bf16(x3 * norm, NATIVE_FLOAT),
    )


@triton.jit
def _hadamard_quarter(x, Q: tl.constexpr, BLOCK_HEADS: tl.constexpr):
    x = _butterfly(x, 1, Q, BLOCK_HEADS)
    x = _butterfly(x, 2, Q, BLOCK_HEADS)
    x = _butterfly(x, 4, Q, BLOCK_HEADS)
    if Q > 8:
        x = _butterfly(x, 8, Q, BLOCK_HEADS)
    if Q > 16:
        x = _butterfly(x, 16, Q, BLOCK_HEADS)
    if Q > 32:
        x = _butterfly(x, 32, Q, BLOCK_HEADS)
    return x


@triton.jit
def _butterfly(x, STRIDE: tl.constexpr, Q: tl.constexpr, BLOCK_HEADS: tl.constexpr):
    pairs = tl.permute(tl.reshape(x, [BLOCK_HEADS, Q // (2 * STRIDE), 2, STRIDE]), [0, 1, 3, 2])
    low, high = tl.split(pairs)
    pairs = tl.permute(tl.join(low + high, low - high), [0, 1, 3, 2])
    return tl.reshape(pairs, [BLOCK_HEADS, Q])


@triton.jit
def _round_bf16(x, NATIVE_FLOAT: tl.constexpr):
    """Round float32 to the nearest bf16 value, ties to even, as float32."""
    if NATIVE_FLOAT:
        return x.to(tl.bfloat16).to(tl.float32)
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    rounded = tl.where((bits & 0x7FFFFFFF) > FP32_INF_BITS, FP32_NAN_BITS, rounded)
    return rounded.to(tl.float32, bitcast=True)


@triton.jit
def _magnitude(x, NATIVE_FLOAT: tl.constexpr):
    """Return |x|, as float32 where the hardware has a maximum that keeps NaN, else as int32 bits.

    As integers Inf and NaN are the largest magnitudes of all, so that either way the maximum finds them.
    """
    if NATIVE_FLOAT:
        return tl.abs(x)
    else:  # noqa: RET505  (Triton compiles what follows a constant `if`, too)
        return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _amax_bits(magnitude, axis: tl.constexpr, NATIVE_FLOAT: tl.constexpr):
    """Bits of the largest magnitude along `axis`, as int32."""
    if NATIVE_FLOAT:
        return tl.reduce(magnitude, axis, _larger).to(tl.int32, bitcast=True)
    else:
        return tl.max(magnitude, axis)


@triton.jit
def _scale_exponent(amax_bits, FLOOR: tl.constexpr, RECIPROCAL: tl.constexpr):
    """Step 5 of the contract: the biased exponent of the power of two at or above max(amax, FLOOR) * RECIPROCAL."""
    ratio = tl.maximum(amax_bits.to(tl.float32, bitcast=True), FLOOR) * RECIPROCAL
    return (ratio.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23


@triton.jit
def _power_of_two(biased_exponent):
    return (biased_exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def _combined_weight(weights_row, heads, stride, combined_scale, H: tl.constexpr):
    return _widen(tl.load(weights_row + heads * stride, mask=heads < H, other=0.0)) * combined_scale


@triton.jit
def _store_weights(weights_out, heads, weight, H: tl.constexpr, NATIVE_FLOAT: tl.constexpr):
    # After the rounding the conversion that the store makes is exact.
    if weights_out.dtype.element_ty == tl.bfloat16:
        weight = _round_bf16(weight, NATIVE_FLOAT)
    tl.store(weights_out + heads, weight.to(weights_out.dtype.element_ty), mask=heads < H)


@triton.jit
def _store_fp8_quarter(
    rows, first_dim: tl.constexpr, values, constant, constant_row, in_range, Q: tl.constexpr,
    NATIVE_FP8: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    pointers = rows[:, None] + (first_dim + tl.arange(0, Q))[None, :]
    if WORDS:
        # A lane loaded 8 dims, 16 bytes. Claiming no more alignment than their 8 codes need keeps them in that lane.
        pointers = tl.multiple_of(pointers, [8, 8])
    if NATIVE_FP8:
        codes = values.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        codes = _encode_e4m3(values)
    tl.store(pointers, codes, mask=(in_range & ~constant_row)[:, None])
    tl.store(pointers, tl.broadcast_to(constant[:, None], codes.shape), mask=(in_range & constant_row)[:, None])


@triton.jit
def _encode_e4m3(x):
    """Encode float32 of magnitude up to 448 as e4m3fn bytes, nearest even, in integer arithmetic."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Normals: keep 3 of 23 mantissa bits and move the exponent's bias from 127 to 7.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2**-6 the codes count steps of 2**-9, the unit in the last place of 2**14.
    shifted = tl.abs(x) + 16384.0
    subnormal = shifted.to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(magnitude < 0x3C800000, subnormal, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _blocks(x, D: tl.constexpr):
    """A quarter [heads, D/4] as [heads, blocks, up to 32 dims]."""
    BLOCKS: tl.constexpr = D // 4 // MX_BLOCK if D > 4 * MX_BLOCK else 1
    return tl.reshape(x, [x.shape[0], BLOCKS, D // 4 // BLOCKS])


@triton.jit
def _store_fp4_quarter(rows, first_byte: tl.constexpr, x, amax_bits, padding, in_range, WORDS: tl.constexpr):
    """Store a quarter's codes as 32-bit words of eight nibbles, or byte by byte where the output is not aligned."""
    HEADS: tl.constexpr = x.shape[0]
    BLOCKS: tl.constexpr = x.shape[1]
    DIMS: tl.constexpr = x.shape[2]
    inverse = _power_of_two(254 - _scale_exponent(amax_bits, MXFP4_FLOOR, MXFP4_RECIPROCAL))
    zero = (amax_bits >= FP32_INF_BITS) | padding[:, None]
    codes = tl.reshape(_round_e2m1(x, inverse[:, :, None]), [HEADS, BLOCKS, DIMS // 2, 2])
    signs = tl.reshape(x.to(tl.uint32, bitcast=True), [HEADS, BLOCKS, DIMS // 2, 2])
    if WORDS:
        COUNT: tl.constexpr = DIMS // 8
        words = _pack8(codes, signs, HEADS, BLOCKS, COUNT)
        pointers = (rows + first_byte).to(tl.pointer_type(tl.int32))[:, None, None]
        # A lane holds one word of each block. Claiming no more alignment keeps the words in the lanes that made them.
        pointers = tl.multiple_of(pointers + _block_offsets(BLOCKS, COUNT), [4, 4, 4])
    else:
        low, high = tl.split((codes & 7) | ((signs >> 28) & 8).to(tl.int32, bitcast=True))
        words = (low | (high << 4)).to(tl.uint8)
        pointers = (rows + first_byte)[:, None, None] + _block_offsets(BLOCKS, DIMS // 2)
    tl.store(pointers, tl.where(zero[:, :, None], 0, words), mask=in_range[:, None, None])


@triton.jit
def _block_offsets(BLOCKS: tl.constexpr, COUNT: tl.constexpr):
    return (tl.arange(0, BLOCKS)[:, None] * COUNT + tl.arange(0, COUNT)[None, :])[None, :, :]


@triton.jit
def _round_e2m1(x, inverse):
    """Round |x| * inverse, of magnitude up to 6, to E2M1, nearest even: as the int32 bits of 2**23 + code.

    The codes' values are 2y up to 2, y + 2 up to 4 and y/2 + 4 up to 6, each the smallest of the three in its range; so
    the code is the smallest of the three rounded to an integer. The products by powers of two are exact, so the fused
    additions round once, as separate ones would.
    """
    doubled = tl.abs(x) * (inverse * 2.0)
    low = (doubled + ROUND_TO_INTEGER).to(tl.int32, bitcast=True)
    middle = tl.fma(doubled, 0.5, ROUND_TO_INTEGER + 2.0).to(tl.int32, bitcast=True)
    high = tl.fma(doubled, 0.25, ROUND_TO_INTEGER + 4.0).to(tl.int32, bitcast=True)
    return tl.minimum(tl.minimum(low, middle), high)


@triton.jit
def _pack8(codes, signs, HEADS: tl.constexpr, BLOCKS: tl.constexpr, COUNT: tl.constexpr):
    """Pack eight codes and the signs of eight float32 words into one 32-bit word, dim 0 in the lowest nibble."""
    c0, c1, c2, c3, c4, c5, c6, c7 = _split8(codes, HEADS, BLOCKS, COUNT)
    s0, s1, s2, s3, s4, s5, s6, s7 = _split8(signs, HEADS, BLOCKS, COUNT)
    word = (((((((c7 << 4) + c6 << 4) + c5 << 4) + c4 << 4) + c3 << 4) + c2 << 4) + c1 << 4) + c0
    # Each step shifts four leading bits in, the sign and three that the mask drops: one funnel shift on a GPU.
    sign = s7 >> 28
    sign = (sign << 4) | (s6 >> 28)
    sign = (sign << 4) | (s5 >> 28)
    sign = (sign << 4) | (s4 >> 28)
    sign = (sign << 4) | (s3 >> 28)
    sign = (sign << 4) | (s2 >> 28)
    sign = (sign << 4) | (s1 >> 28)
    sign = (sign << 4) | (s0 >> 28)
    # The sum holds, modulo 2**32, the bits of 2**23 that stand above each code: 0x4B000000 * (1 + 16 + 256 + ...).
    return (word - (0xFB000000 - (1 << 32))) | (sign & 0x88888888).to(tl.int32, bitcast=True)


@triton.jit
def _split8(x, HEADS: tl.constexpr, BLOCKS: tl.constexpr, COUNT: tl.constexpr):
    even, odd = tl.split(x)
    x04, x26 = tl.split(tl.reshape(even, [HEADS, BLOCKS, 2 * COUNT, 2]))
    x15, x37 = tl.split(tl.reshape(odd, [HEADS, BLOCKS, 2 * COUNT, 2]))
    x0, x4 = tl.split(tl.reshape(x04, [HEADS, BLOCKS, COUNT, 2]))
    x2, x6 = tl.split(tl.reshape(x26, [HEADS, BLOCKS, COUNT, 2]))
    x1, x5 = tl.split(tl.reshape(x15, [HEADS, BLOCKS, COUNT, 2]))
    x3, x7 = tl.split(tl.reshape(x37, [HEADS, BLOCKS, COUNT, 2]))
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def _scale_byte(amax_bits, padding):
    exponent = _scale_exponent(amax_bits, MXFP4_FLOOR, MXFP4_RECIPROCAL)
    return tl.where(padding[:, None], 0, tl.where(amax_bits >= FP32_INF_BITS, E8M0_NAN, exponent))


@triton.jit
def _store_scales(rows, first_block: tl.constexpr, amax_bits, padding, in_range):
    BLOCKS: tl.constexpr = amax_bits.shape[1]
    pointers = rows[:, None] + (tl.arange(0, BLOCKS) + first_block)[None, :]
    tl.store(pointers, _scale_byte(amax_bits, padding).to(tl.uint8), mask=in_range[:, None])
