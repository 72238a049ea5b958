"""Give CPU tensors addresses in the interpreter's memory, and turn what a kernel wrote there into tensors again.

A tensor becomes a region from its first to its last element. Bytes between the elements of a strided view are part of
the region but have no value, so a kernel that reads them is caught. Addresses keep the storage offset's alignment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tests.cases import Case

from .memory import Memory, Region

FIRST_ADDRESS = 0x7E00_0000_0000
_SLOT = 1 << 32  # distance between tensors: an access that misses one hits nothing
_UNIT = 256  # the CUDA allocator aligns storages at least this much


@dataclass(frozen=True)
class Placed:
    """A tensor and its address. Outputs are written by the kernel, inputs must not be."""

    name: str
    tensor: Tensor
    address: int
    output: bool

    @property
    def size(self) -> int:
        """Bytes from the first element to the end of the last."""
        return _span(self.tensor)


def place(tensors: dict[str, Tensor], outputs: frozenset[str]) -> dict[str, Placed]:
    """Assign addresses; `outputs` names the tensors that the kernel writes."""
    placed = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        offset = tensor.storage_offset() * tensor.element_size() % _UNIT
        placed[name] = Placed(name, tensor, FIRST_ADDRESS + number * _SLOT + offset, name in outputs)
    return placed


def placed_tensors(case: Case) -> dict[str, Placed]:
    """The case's inputs and its outputs, which hold nothing yet, at their addresses."""
    tensors: dict[str, Tensor] = {name: getattr(case, name) for name in ("positions", "q", "cos_sin_cache", "weights")}
    shapes = case.output_shapes()
    tensors |= {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
    return place(tensors, frozenset(shapes))


def register(memory: Memory, placed: dict[str, Placed]) -> dict[str, Region]:
    """Add a region for each tensor that has elements: inputs with their bytes, outputs without any value."""
    regions = {}
    for name, each in placed.items():
        if not each.tensor.numel():
            continue
        region = memory.add(Region(name, each.address, each.size, writable=each.output))
        if not each.output:
            content, known = _bytes(each.tensor)
            region.fill(content, known)
        regions[name] = region
    return regions


def result(placed: Placed, region: Region | None) -> Tensor:
    """What the kernel left in an output, shaped and strided like the tensor that stands for it."""
    tensor = torch.empty_strided(placed.tensor.shape, placed.tensor.stride(), dtype=placed.tensor.dtype)
    if region is not None:
        _raw(tensor)[:] = region.content
    return tensor


def _span(tensor: Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _raw(tensor: Tensor) -> np.ndarray:
    """The tensor's bytes from first to last element, gaps included, as a view."""
    flat = torch.as_strided(tensor, (_span(tensor) // tensor.element_size(),), (1,))
    return flat.view(torch.uint8).numpy()


def _bytes(tensor: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The span's bytes, and which of them belong to an element."""
    marks = torch.zeros(_span(tensor), dtype=torch.uint8)
    elements = torch.as_strided(
        marks,
        (*tensor.shape, tensor.element_size()),
        (*(stride * tensor.element_size() for stride in tensor.stride()), 1),
    )
    elements.fill_(1)
    return _raw(tensor), marks.numpy()
