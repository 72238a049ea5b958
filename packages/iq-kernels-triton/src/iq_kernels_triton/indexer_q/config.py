"""The choice of a kernel variant: the one function that launch and warmup both call.

A variant is everything that a compiled kernel depends on. Nothing else specialises a kernel (the compiler is given the
types, constants and alignments listed here and infers none from arguments), so a variant compiled once serves every T.
"""

from __future__ import annotations

from dataclasses import dataclass

from iq_kernels_triton import _abi

CONTIGUOUS = "contiguous"  # aligned, with q and the cache contiguous: their strides are constants of the kernel
STRIDED = "strided"  # aligned, strides at run time
UNALIGNED = "unaligned"  # a base or a stride that is no multiple of 16 bytes: elements are loaded one by one
LAYOUTS = (CONTIGUOUS, STRIDED, UNALIGNED)
ALIGNMENT = 16  # bytes of the widest load and store

# By op, in rising order: (elements of q up to which it holds, elements a program, elements a thread). Few elements want
# many small programs; many want cosines and sines reused, and bytes in flight against the length of the dependent
# chain. Measured on an H200 (docs/performance.md).
TILES = {
    "indexer_q_fp8": ((1 << 21, 1024, 32), (None, 4096, 32)),
    "indexer_q_mxfp4": ((1 << 22, 1024, 32), (1 << 25, 4096, 32), (None, 4096, 64)),
}

MAX_PROGRAMS = 2**31 - 1  # of grid dimension x, CUDA and HIP alike
MAX_ELEMENTS = MAX_PROGRAMS * min(tile for rows in TILES.values() for _, tile, _ in rows)  # of q, whatever the variant
MIN_SM = 80  # bf16 conversion and NaN-propagating maximum
AHEAD_SM = (80, 86, 87, 89, 90, 100, 103, 110, 120, 121)  # LLVM ends the process over one that it does not know
FP8_SM = 89  # cvt.rn.satfinite.e4m3x2.f32
PDL_SM = 90  # programmatic dependent launch
AMD_TARGETS = ("gfx942", "gfx950")
FP8_AMD_TARGETS = ("gfx950",)  # gfx942 converts to the fnuz encoding alone

_POINTERS = ("positions_ptr", "q_ptr", "cache_ptr", "weights_ptr")
_ELEMENT_TYPES = {
    "int32": "*i32",
    "int64": "*i64",
    "bfloat16": "*bf16",
    "float16": "*fp16",
    "float32": "*fp32",
    "uint8": "*u8",
}


@dataclass(frozen=True)
class Variant:
    """One kernel to compile, as (argument, value) pairs: the types of arguments and the constants among them.

    A program takes `rows` rows of D elements, each of them one head of one token. `divisible` lists (argument, divisor)
    pairs that hold at run time: bytes for a pointer, elements for a stride.
    """

    op: str
    target: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | bool], ...]
    divisible: tuple[tuple[str, int], ...]
    rows: int
    num_warps: int
    use_pdl: bool

    @property
    def label(self) -> str:
        """A short name for logs and progress bars."""
        constants = dict(self.constants)
        layout = CONTIGUOUS if "q_head_stride" in constants else STRIDED if constants["WORDS"] else UNALIGNED
        return (
            f"{self.op} {self.target} H={constants['H']} D={constants['D']} R={constants['R']} {layout} "
            f"{self.rows} rows x {self.num_warps} warps"
        )


def choose(workload: _abi.Workload, layout: str, tokens: int) -> Variant:
    """Return the variant that runs `workload` at T = `tokens` on inputs of `layout` (one of LAYOUTS)."""
    num_heads, head_dim, rope_dim = workload.num_heads, workload.head_dim, workload.rope_dim
    tile, per_thread = _tile(workload, layout, tokens * num_heads * head_dim)
    rows = tile // head_dim
    num_warps = max(1, tile // per_thread // warp_size(workload.target))

    sm = cuda_capability(workload.target)
    fp8 = workload.op == "indexer_q_fp8"
    use_pdl = sm >= PDL_SM
    constants: dict[str, int | bool] = {}
    if layout == CONTIGUOUS:
        constants |= {"q_token_stride": num_heads * head_dim, "q_head_stride": head_dim, "cache_stride": rope_dim}
    constants |= {
        "H": num_heads,
        "D": head_dim,
        "R": rope_dim,
        "ROPE_START": head_dim - rope_dim if workload.rope_at == "tail" else 0,
        "NEOX": workload.rope_style == "neox",
        "HADAMARD": workload.hadamard,
        "ROWS": rows,
        "NATIVE_FLOAT": sm >= MIN_SM,
    }
    if fp8:
        constants["NATIVE_FP8"] = sm >= FP8_SM or workload.target in FP8_AMD_TARGETS
    constants |= {"WORDS": layout != UNALIGNED, "USE_PDL": use_pdl}
    return Variant(
        op=workload.op,
        target=workload.target,
        types=_types(workload),
        constants=tuple(constants.items()),
        divisible=_divisible(workload, layout),
        rows=rows,
        num_warps=num_warps,
        use_pdl=use_pdl,
    )


def all_variants(workload: _abi.Workload) -> tuple[Variant, ...]:
    """Every variant that `choose` returns for the workload, whatever T and layout."""
    row_elements = workload.num_heads * workload.head_dim
    tokens = [1] + [-(-limit // row_elements) for limit, _, _ in TILES[workload.op] if limit is not None]
    chosen = (choose(workload, layout, count) for layout in LAYOUTS for count in tokens)
    return tuple(dict.fromkeys(chosen))


def programs(variant: Variant, tokens: int) -> int:
    """Programs that share the rows of T = `tokens`: grid dimension x."""
    return -(-tokens * dict(variant.constants)["H"] // variant.rows)


def cuda_capability(target: str) -> int:
    """90 for "sm_90" and for "sm_90a"; 0 for a target that is not CUDA."""
    digits = target.removeprefix("sm_").rstrip("af")
    return int(digits) if target.startswith("sm_") and digits.isdecimal() else 0


def warp_size(target: str) -> int:
    """Threads of a warp (NVIDIA) or of a wavefront (AMD CDNA)."""
    return 64 if target.startswith("gfx9") else 32


def _tile(workload: _abi.Workload, layout: str, elements: int) -> tuple[int, int]:
    """Elements a program and a thread take of `elements` of q."""
    rows = TILES[workload.op]
    if workload.target == "cpu":  # the interpreter's time goes by programs, not by elements
        return rows[-1][1:]
    if layout == UNALIGNED:
        return rows[0][1:]
    return next((tile, thread) for limit, tile, thread in rows if limit is None or elements < limit)


def _types(workload: _abi.Workload) -> tuple[tuple[str, str], ...]:
    outputs = ("codes_ptr",) if workload.op == "indexer_q_fp8" else ("codes_ptr", "scales_ptr")
    dtypes = (workload.positions_dtype, "bfloat16", workload.cos_sin_cache_dtype, workload.weights_dtype)
    types = dict(zip(_POINTERS, (_ELEMENT_TYPES[dtype] for dtype in dtypes), strict=True))
    types |= dict.fromkeys(outputs, "*u8")
    types["weights_out_ptr"] = _ELEMENT_TYPES[workload.weights_out_dtype]
    types["combined_scale"] = "fp32"
    integers = ("num_tokens", "num_positions", "positions_stride", "q_token_stride", "q_head_stride", "cache_stride")
    return (*types.items(), *((name, "i64") for name in (*integers, "weights_token_stride", "weights_head_stride")))


def _divisible(workload: _abi.Workload, layout: str) -> tuple[tuple[str, int], ...]:
    if layout == UNALIGNED:
        return ()
    outputs = ("codes_ptr",) if workload.op == "indexer_q_fp8" else ("codes_ptr", "scales_ptr")
    bases = tuple((name, ALIGNMENT) for name in ("q_ptr", "cache_ptr", *outputs))
    if layout == CONTIGUOUS:
        return bases
    cache_elements = ALIGNMENT // (4 if workload.cos_sin_cache_dtype == "float32" else 2)
    return (*bases, ("q_token_stride", 8), ("q_head_stride", 8), ("cache_stride", cache_elements))
