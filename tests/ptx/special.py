"""The predefined registers of every lane of a launch (PTX ISA, Special Registers)."""

from __future__ import annotations

import numpy as np

from .memory import WARP


def special_registers(
    grid: tuple[int, int, int], block: tuple[int, int, int], block_lanes: int
) -> dict[str, np.ndarray]:
    """Values (lanes,) uint32 of each register; a block takes `block_lanes` lanes, whole warps of them."""
    lane = np.arange(int(np.prod(grid)) * block_lanes)
    inside = lane % block_lanes
    values = {
        "%laneid": lane % WARP,
        "%warpid": inside // WARP,
        "%nwarpid": np.full(len(lane), block_lanes // WARP),
    }
    for name, index, extent in (("tid", inside, block), ("ctaid", lane // block_lanes, grid)):
        values[f"%{name}.x"] = index % extent[0]
        values[f"%{name}.y"] = index // extent[0] % extent[1]
        values[f"%{name}.z"] = index // (extent[0] * extent[1])
        for axis, size in zip("xyz", extent, strict=True):
            values[f"%n{name}.{axis}"] = np.full(len(lane), size)
    own = np.uint64(1) << (lane % WARP).astype(np.uint64)
    below = own - np.uint64(1)
    full = np.uint64(0xFFFFFFFF)
    masks = {"eq": own, "lt": below, "le": below | own, "gt": full & ~(below | own), "ge": full & ~below}
    registers = {**values, **{f"%lanemask_{relation}": mask for relation, mask in masks.items()}}
    return {name: value.astype(np.uint32) for name, value in registers.items()}
