"""A small persistent, software-pipelined CuTeDSL kernel: what the interpreter and the harness must be able to run.

Each warp takes tiles of 32 lanes times 4 words, of which it always copies the next one to dynamic shared memory while
it works on the one before. Target: the source with the 16-byte parts of even and odd lanes exchanged, plus one.
"""

from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

LANES, WORDS = 32, 4
TILE = LANES * WORDS  # words
WARPS, STAGES, MOST_BLOCKS = 2, 2, 3
SHARED_BYTES = WARPS * STAGES * TILE * 4


class Pipelined:
    """The launcher and the kernel."""

    @cute.jit
    def __call__(self, source: cute.Tensor, target: cute.Tensor, stream: Any) -> None:
        """As many blocks as there is work for, but no more than run at once."""
        tiles = cute.size(source) // TILE
        self.kernel(source, target, tiles).launch(
            grid=(cutlass.min(cute.ceil_div(tiles, WARPS), MOST_BLOCKS), 1, 1),
            block=(WARPS * LANES, 1, 1),
            smem=SHARED_BYTES,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, source: cute.Tensor, target: cute.Tensor, tiles: Int32) -> None:
        """Copy, wait for the copy before, exchange within the warp, store."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        lane, warp = thread % LANES, thread // LANES
        stages = cute.make_tensor(
            cute.arch.get_dyn_smem(cutlass.Int32, alignment=16),
            cute.make_layout((WARPS, STAGES, LANES, WORDS), stride=(STAGES * TILE, TILE, WORDS, 1)),
        )
        copy = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Int32, num_bits_per_copy=128)
        given, result = cute.zipped_divide(source, (WORDS,)), cute.zipped_divide(target, (WORDS,))
        tile, stage = block * WARPS + warp, Int32(0)
        if tile < tiles:
            cute.copy(copy, given[(None, tile * LANES + lane)], stages[warp, stage, lane, None])
        cute.arch.cp_async_commit_group()
        while tile < tiles:
            following = tile + blocks * WARPS
            if following < tiles:
                cute.copy(copy, given[(None, following * LANES + lane)], stages[warp, 1 - stage, lane, None])
            cute.arch.cp_async_commit_group()
            cute.arch.cp_async_wait_group(1)
            cute.arch.sync_warp()  # the neighbour has waited too
            words = cute.make_rmem_tensor((WORDS,), cutlass.Int32)
            cute.autovec_copy(stages[warp, stage, lane ^ 1, None], words)
            for place in cutlass.range_constexpr(WORDS):
                words[place] = words[place] + 1
            cute.autovec_copy(words, result[(None, tile * LANES + lane)])
            cute.arch.sync_warp()  # the neighbour has read this stage, which is copied to next
            tile, stage = following, 1 - stage


def compile_for(arch: str, folder: str) -> Any:
    """Compile for one architecture; the PTX is among the result's artifacts."""
    size = cute.sym_int(32, divisibility=TILE)
    tensors = [cute.runtime.make_fake_tensor(cutlass.Int32, (size,), (1,), assumed_align=16) for _ in range(2)]
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    options = f"--enable-tvm-ffi --gpu-arch {arch} --keep-ptx --dump-dir={folder}"
    return cute.compile(Pipelined(), *tensors, stream, options=options)
