"""Which variant of the kernel a call runs: the one choice that launch and warmup share.

A `Variant` is everything that is compiled in, as plain scalars. `choose` maps a call to its variant by its token count;
`variants` lists all that `choose` can return for a workload, whatever the token count.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from iq_kernels_cute import _abi

from . import tuning

BF16_BYTES = 2
WIDE_LOADS = 100  # the compute capability from which a load takes 256 bits
HADAMARD_DIMS = 64  # a thread, for a Hadamard transform of dims or on a GPU that nobody has tuned it for
MAX_ROWS = 2**31 - 2**12  # T*H: work items and their last block are numbered in 32 bits


@dataclass(frozen=True)
class Variant:
    """One compiled kernel.

    A lane holds `chunks` vectors of `vector` consecutive dims of a row, `head_dim / chunks` apart, for each of
    `heads_per_thread` heads of one token. `dense`: q (H*D, D, 1), weights (H, 1), positions (1) and cache (R, 1)
    have exactly these strides; otherwise strides are run-time arguments. `min_blocks` of 1 tells ptxas that registers
    are free; without it ptxas saves registers by issuing half of the loads only after the first arithmetic.
    """

    op: str
    num_heads: int
    head_dim: int
    rope_dim: int
    rope_style: str
    rope_at: str
    hadamard: bool
    positions_dtype: str
    cos_sin_cache_dtype: str
    weights_dtype: str
    weights_out_dtype: str
    arch: str
    dense: bool
    vector: int
    chunks: int
    heads_per_thread: int
    threads: int
    pdl: bool
    load_modifier: str = ""
    cache_modifier: str = ""
    store_modifier: str = ""
    prefetch_tokens: int = 0
    min_blocks: int = 1

    @property
    def capability(self) -> int:
        """Compute capability as major * 10 + minor: 90 for "sm_90a"."""
        return capability_of(self.arch)

    @property
    def lanes_per_row(self) -> int:
        """Lanes that share one row: a power of two, at most a warp."""
        return self.head_dim // (self.vector * self.chunks)

    @property
    def chunk_dims(self) -> int:
        """Dims of one chunk, all lanes together."""
        return self.head_dim // self.chunks

    @property
    def groups(self) -> int:
        """Groups of heads of a token; one work item is one group of one token."""
        return self.num_heads // self.heads_per_thread

    @property
    def items_per_block(self) -> int:
        """Work items of a block."""
        return self.threads // self.lanes_per_row

    @property
    def rope_start(self) -> int:
        """The first rotary dim."""
        return self.head_dim - self.rope_dim if self.rope_at == "tail" else 0

    @property
    def hardware_e4m3(self) -> bool:
        """Whether the target converts to e4m3 in hardware."""
        return self.capability >= 89

    @property
    def hardware_e2m1(self) -> bool:
        """Whether the target converts to E2M1 in hardware: arch- or family-specific Blackwell targets alone."""
        return self.capability >= 100 and self.arch[-1] in "af"

    @property
    def adds_two(self) -> bool:
        """Whether the target adds two pairs of fp32 in one instruction; ptxas takes those apart for later ones."""
        return 100 <= self.capability < 110

    def problem(self) -> str | None:
        """Why this combination of parameters has no kernel; None if it has."""
        if self.vector not in (4, 8, 16) or self.chunks not in (1, 2, 4, 8):
            return f"vector {self.vector} x chunks {self.chunks} is outside 4, 8, 16 x 1, 2, 4, 8"
        if self.chunk_dims < max(self.vector, _abi.MX_BLOCK if self.op == "indexer_q_mxfp4" else 0):
            return f"a chunk of {self.chunk_dims} dims is smaller than a vector or an MX block"
        if self.lanes_per_row > 32 or self.threads % 32 or not 32 <= self.threads <= 1024:
            return f"{self.lanes_per_row} lanes a row, {self.threads} threads: at most a warp, whole warps of a block"
        if self.num_heads % self.heads_per_thread:
            return f"{self.heads_per_thread} heads a thread do not divide {self.num_heads} heads"
        if self.rope_style == "neox" and self.rope_dim // 2 % self.vector:
            return f"half the rotary dim, {self.rope_dim // 2}, is no multiple of the vector {self.vector}"
        if self.pdl and self.capability < 90:
            return "programmatic dependent launch needs sm_90"
        return None


def capability_of(target: str) -> int:
    """Compute capability as major * 10 + minor: 90 for "sm_90" and for "sm_90a"."""
    return int(target.removeprefix("sm_").rstrip("af"))


def compile_arch(target: str) -> str:
    """The architecture to compile for, of a device's "sm_90": the arch-specific one where it has more instructions."""
    if target.startswith("sm_") and target[3:].isdigit() and int(target[3:]) >= 90:
        return target + "a"
    return target


def heads_per_thread(num_heads: int, wanted: int) -> int:
    """The largest divisor of `num_heads` that is at most `wanted`."""
    return next(k for k in range(min(wanted, num_heads), 0, -1) if num_heads % k == 0)


@lru_cache(maxsize=1024)  # a new token count asks again, and fitting the table takes longer than a launch
def schedule(workload: _abi.Workload, dense: bool) -> tuple[tuple[int, Variant], ...]:
    """Which variant runs up to how many tokens, in rising order; `dense` as in `Variant`. Past the last none can."""
    row_bytes = workload.num_heads * workload.head_dim * BF16_BYTES
    limit = MAX_ROWS // workload.num_heads
    steps: list[tuple[int, Variant]] = []
    for shape in _table(workload, dense):
        tokens = limit if shape.max_bytes is None else min(limit, shape.max_bytes // row_bytes)
        variant = _fit(workload, shape, dense)
        if steps and steps[-1][1] == variant:
            steps.pop()
        if tokens > (steps[-1][0] if steps else 0):
            steps.append((tokens, variant))
    return tuple(steps)


def choose(workload: _abi.Workload, tokens: int, dense: bool) -> Variant:
    """The variant for `tokens` tokens of `workload`."""
    return next(variant for limit, variant in schedule(workload, dense) if tokens <= limit)


def variants(workload: _abi.Workload) -> list[Variant]:
    """Every variant that `choose` can return for `workload`, dense and strided, each once."""
    return list(dict.fromkeys(variant for dense in (True, False) for _, variant in schedule(workload, dense)))


def _table(workload: _abi.Workload, dense: bool) -> tuple[tuning.Shape, ...]:
    wide_loads = capability_of(workload.target) >= WIDE_LOADS
    return tuning.table(workload.op, workload.hadamard, wide_loads, dense)


def _fit(workload: _abi.Workload, shape: tuning.Shape, dense: bool) -> Variant:
    """Fit a row of the table to a workload's dims: lanes within a warp, neox halves in whole vectors."""
    arch = compile_arch(workload.target)
    vector, chunks = shape.vector, shape.chunks
    if workload.rope_style == "neox":
        half = workload.rope_dim // 2
        vector = gcd(vector, half)
        if half >= _abi.MX_BLOCK and workload.head_dim % half == 0:
            chunks = workload.head_dim // half  # a pair then lies in one lane, and nothing is shuffled to rotate it
    while workload.head_dim // (vector * chunks) > 32:
        chunks *= 2
    while chunks > 1 and workload.head_dim // chunks < _abi.MX_BLOCK:
        chunks //= 2
    as_tuned = (
        capability_of(arch) >= 90
        and workload.rope_style == "interleaved"
        and 2 * workload.rope_dim <= workload.head_dim
        and (vector, chunks) == (shape.vector, shape.chunks)
    )
    dims_of_shape = shape.vector * shape.chunks * shape.heads_per_thread
    if workload.hadamard:  # holds all of a thread's dims in fp32 at once: few registers are left for anything else
        usual_dims = (workload.head_dim, workload.rope_dim) == (128, 64)
        as_tuned = as_tuned and usual_dims and workload.num_heads.bit_count() == 1
        if not as_tuned:
            dims_of_shape = min(dims_of_shape, HADAMARD_DIMS)
            vector = max(4, min(vector, HADAMARD_DIMS // chunks))
    heads = min(shape.heads_per_thread, max(1, dims_of_shape // (vector * chunks)))
    min_blocks = shape.min_blocks if as_tuned else 1  # others need more registers, and would spill
    if workload.hadamard and workload.num_heads < 32:
        min_blocks = min(min_blocks, 12)  # as blocks do that hold several tokens
    fields = {
        field.name: getattr(workload, field.name)
        for field in dataclasses.fields(workload)
        if field.name not in ("target", "device_index")
    }
    return Variant(
        **fields,
        arch=arch,
        dense=dense,
        vector=vector,
        chunks=chunks,
        heads_per_thread=heads_per_thread(workload.num_heads, heads),
        threads=shape.threads,
        pdl=capability_of(arch) >= 90,
        load_modifier=shape.load_modifier,
        cache_modifier=shape.cache_modifier,
        store_modifier=shape.store_modifier,
        prefetch_tokens=-(-shape.prefetch_bytes // (workload.num_heads * workload.head_dim * BF16_BYTES)),
        min_blocks=min_blocks,
    )
