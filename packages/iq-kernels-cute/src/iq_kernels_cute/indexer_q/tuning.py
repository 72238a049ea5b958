"""The tuning tables: how work is laid out, by the bytes of q of a call. Plain data; `config` fits it to a workload.

Measured on an H200 (docs/performance.md has the log): short inputs want a short dependent chain on many SMs, inputs
of one wave want every load issued at once, long ones want bytes in flight and the next wave's cosines in L2.
Blackwell's rows follow from its 256-bit loads and its bytes in flight; nobody here has measured them.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_L1 = ".L1::no_allocate"  # q is read once
STREAMING = ".cs"  # the consumer reads the codes from L2 or not at all
CONSTANT = ".nc"  # through the path for data that nobody writes meanwhile
KIB, MIB = 1 << 10, 1 << 20
PREFETCH_BYTES = 6_553_600  # of q: about one wave of blocks on an H200


@dataclass(frozen=True)
class Shape:
    """One row: what runs up to `max_bytes` of q (None: without end); the other fields as in `config.Variant`."""

    max_bytes: int | None
    vector: int
    chunks: int
    heads_per_thread: int
    threads: int
    load_modifier: str = ""
    cache_modifier: str = ""
    store_modifier: str = ""
    prefetch_bytes: int = 0  # how far ahead, in bytes of q
    min_blocks: int = 1


FP8 = (
    Shape(64 * KIB, 4, 1, 1, 128, NO_L1, CONSTANT),
    Shape(768 * KIB, 4, 1, 1, 256, NO_L1, CONSTANT),
    Shape(1536 * KIB, 4, 1, 1, 256, NO_L1, "", STREAMING),
    Shape(5 * MIB, 4, 2, 1, 256, NO_L1, "", STREAMING),
    Shape(12 * MIB, 8, 2, 1, 256, "", CONSTANT, min_blocks=8),
    Shape(384 * MIB, 8, 2, 1, 256, "", CONSTANT, prefetch_bytes=PREFETCH_BYTES, min_blocks=8),
    Shape(None, 8, 4, 1, 128, min_blocks=8),
)
MXFP4 = (
    Shape(768 * KIB, 4, 1, 1, 128, NO_L1),
    Shape(1536 * KIB, 4, 2, 1, 128, NO_L1),
    Shape(3 * MIB, 4, 2, 1, 256, NO_L1, "", STREAMING),
    Shape(6 * MIB, 8, 2, 1, 256, NO_L1, CONSTANT, STREAMING),
    Shape(12 * MIB, 8, 2, 1, 256, "", CONSTANT, prefetch_bytes=PREFETCH_BYTES, min_blocks=8),
    Shape(None, 8, 2, 4, 128, "", CONSTANT, min_blocks=8),
)
# With a Hadamard transform more dims a lane, since a butterfly across lanes costs twice one inside.
SHORT_HADAMARD = (
    Shape(1536 * KIB, 4, 1, 1, 128, NO_L1, "", STREAMING),
    Shape(5 * MIB, 4, 2, 1, 256, NO_L1, "", STREAMING),
    Shape(12 * MIB, 16, 4, 1, 64, "", CONSTANT, min_blocks=8),
)
FP8_HADAMARD = (
    *SHORT_HADAMARD,
    Shape(24 * MIB, 16, 2, 4, 64, "", CONSTANT, min_blocks=8),
    Shape(48 * MIB, 16, 2, 1, 64, min_blocks=16),
    Shape(None, 16, 2, 2, 64, min_blocks=14),
)
MXFP4_HADAMARD = (
    *SHORT_HADAMARD,
    Shape(24 * MIB, 16, 2, 4, 64, "", CONSTANT, prefetch_bytes=PREFETCH_BYTES, min_blocks=8),
    Shape(None, 16, 2, 2, 64, "", CONSTANT, min_blocks=14),
)
# Run-time strides: few kernels to warm, near enough to the dense ones.
STRIDED = (
    Shape(5 * MIB, 4, 2, 1, 256, NO_L1, "", STREAMING),
    Shape(None, 8, 2, 1, 256, "", CONSTANT, prefetch_bytes=PREFETCH_BYTES, min_blocks=4),
)
BLACKWELL = (
    Shape(4 * MIB, 16, 1, 1, 128, NO_L1, "", STREAMING),
    Shape(None, 16, 2, 1, 128, "", CONSTANT, prefetch_bytes=PREFETCH_BYTES, min_blocks=8),
)


def table(op: str, hadamard: bool, wide_loads: bool, dense: bool) -> tuple[Shape, ...]:
    """The rows for an op, in rising order of bytes. `wide_loads`: the target loads 256 bits; `dense`: see `Variant`."""
    if not dense:
        return STRIDED
    if wide_loads:
        return BLACKWELL
    if op == "indexer_q_fp8":
        return FP8_HADAMARD if hadamard else FP8
    return MXFP4_HADAMARD if hadamard else MXFP4
