"""A pipelined, persistent CuTeDSL kernel with dynamic shared memory: launched by its own launcher, faults planted."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from tests.ptx import pipelined
from tests.ptx.cute_host import HostLauncher
from tests.ptx.errors import MemoryAccessError
from tests.ptx.launch import Execution, execute
from tests.ptx.parse import parse
from tests.ptx.placement import Placed, place

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
SIZES = (1, 2, 3, 5, 6, 7, 13, 24)  # tiles: less than a block, not a multiple of a block, several rounds of all blocks


@pytest.fixture(scope="module", params=ARCHITECTURES)
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, HostLauncher]:
    folder: Path = tmp_path_factory.mktemp("ptx")
    compiled = pipelined.compile_for(request.param, str(folder))
    ptx = compiled.artifacts.PTX
    return ptx, HostLauncher(compiled, parse(ptx).kernel())


@lru_cache
def placed(tiles: int) -> dict[str, Placed]:
    source = torch.randint(-(2**31), 2**31, (tiles * pipelined.TILE,), dtype=torch.int64).to(torch.int32)
    return place({"source": source, "target": torch.empty_like(source)}, frozenset({"target"}))


def interpret(ptx: str, launcher: HostLauncher, tiles: int) -> Execution:
    tensors = placed(tiles)
    (made,) = launcher(*tensors.values())
    blocks = min(-(-tiles // pipelined.WARPS), pipelined.MOST_BLOCKS)
    assert (made.grid, made.block) == ((blocks, 1, 1), (pipelined.WARPS * pipelined.LANES, 1, 1))
    assert made.dynamic_shared == pipelined.SHARED_BYTES
    return execute(parse(ptx).kernel(), made, tensors)


@pytest.mark.parametrize("tiles", SIZES)
def test_every_tile_is_worked_on(kernel: tuple[str, HostLauncher], tiles: int) -> None:
    got = interpret(*kernel, tiles).outputs["target"]
    parts = placed(tiles)["source"].tensor.view(-1, 2, pipelined.WORDS)
    assert torch.equal(got, (parts.flip(1) + 1).flatten())


BARRIER = r"bar\.warp\.sync\s+"
FAULTS = {
    "no wait": (r"cp\.async\.wait_group\s+1;", "", r"reads a byte that a copy by .* at line \d+ has yet to write"),
    "a group too many left": (r"(cp\.async\.wait_group\s+)1;", r"\g<1>2;", r"reads a byte that a copy by .* has yet"),
    "no commit": (r"cp\.async\.commit_group;\s+cp\.async\.wait", "cp.async.wait", "reads a byte that a copy by"),
    "no barrier behind the wait": (rf"(wait_group\s+1;\s+){BARRIER}-1;", r"\1", "reads a byte written by block"),
    "a barrier of half a warp": (rf"(wait_group\s+1;\s+{BARRIER})-1;", r"\1%half;", "reads a byte written by block"),
    "no barrier behind the reads": (
        rf"(st\.global[^;]*;\s+){BARRIER}-1;", r"\1", r"cp\.async.* writes a byte that block .* read at line \d+"
    ),
    "one stage": (r"(cp\.async\.ca\.shared\.global\s*\[%r\d+)\+512\]", r"\1]", "a copy by block|read at line"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault(kernel: tuple[str, HostLauncher], fault: str) -> None:
    ptx, launcher = kernel
    pattern, replacement, message = FAULTS[fault]
    text, times = re.subn(pattern, replacement, ptx, count=1)
    assert times, f"the kernel has nothing like {pattern}: find another place to plant the fault"
    half = ".reg .b32 %half; mov.u32 %half, %laneid; and.b32 %half, %half, 16; shl.b32 %half, 0xffff, %half;"
    text = text.replace("\tld.param", f"\t{half}\n\tld.param", 1)
    with pytest.raises(MemoryAccessError, match=rf"line \d+: .*({message})"):
        interpret(text, launcher, 24)
