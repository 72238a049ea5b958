"""Counts and places of differences between two sets of outputs: the first, how large, in which rows and dims."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import _abi

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Difference:
    """The first differing element: where it is, and what stands there, as raw bytes in hex and as a value.

    dim is the head dim of a code, the first dim of a scale's block, None for head weights and row scales.
    """

    token: int
    head: int
    dim: int | None
    expected: str
    actual: str
    expected_value: float
    actual_value: float


@dataclass(frozen=True)
class TensorReport:
    """One output against what was expected. largest_step: codes or ulps between the two, 0 where only -0 and +0 differ.

    tokens, heads, dims: how many are touched, with the first and the last (half-open: one past it), of how many.
    """

    name: str
    count: int
    differing: int
    largest_step: int
    first: Difference | None
    tokens: tuple[int, int, int, int]
    heads: tuple[int, int, int, int]
    dims: tuple[int, int, int, int] | None


class Tally:
    """Collects the differences of one output over chunks of tokens."""

    def __init__(self, name: str, num_tokens: int, num_heads: int, num_dims: int | None) -> None:
        self.name = name
        self.count = self.differing = self.largest_step = 0
        self.first: Difference | None = None
        self._tokens = torch.zeros(num_tokens, dtype=torch.bool)
        self._heads = torch.zeros(num_heads, dtype=torch.bool)
        self._dims = None if num_dims is None else torch.zeros(num_dims, dtype=torch.bool)

    def add(self, start: int, expected: Tensor, actual: Tensor, rows: Tensor) -> Tensor:
        """Compare a chunk that begins at token `start`, in the rows (n, H) that are True; return the rows that differ.

        Codes: uint8 (n, H, D) for FP8 or (n, H, D/2) for MXFP4, scales: uint8 (n, H, D/32); weights and row scales
        (n, H) float32 or bfloat16.
        """
        expected_items, actual_items = _items(self.name, expected), _items(self.name, actual)
        differs = _differs(expected_items, actual_items) & rows.reshape(rows.shape + (1,) * (expected_items.dim() - 2))
        per_row = expected_items[0, 0].numel() if expected_items.dim() == 3 else 1
        self.count += int(rows.sum()) * per_row
        touched = differs.any(-1) if differs.dim() == 3 else differs
        number = int(differs.sum())
        if number == 0:
            return touched
        self.differing += number
        steps = (_ordered(self.name, expected_items) - _ordered(self.name, actual_items)).abs()
        self.largest_step = max(self.largest_step, int(steps[differs].max()))
        if self.first is None:
            index = tuple(int(i) for i in differs.nonzero()[0])
            self.first = _difference(self.name, start, index, (expected, expected_items), (actual, actual_items))
        self._tokens[start : start + touched.shape[0]] |= touched.any(1)
        self._heads |= touched.any(0)
        if self._dims is not None:
            self._dims |= differs.flatten(0, 1).any(0)
        return touched

    def report(self) -> TensorReport:
        """Return the counts so far."""
        return TensorReport(
            self.name, self.count, self.differing, self.largest_step, self.first,
            _extent(self._tokens), _extent(self._heads), None if self._dims is None else _extent(self._dims),
        )  # fmt: skip


def unpack(packed: Tensor) -> Tensor:
    """Return the E2M1 codes (..., D) of packed bytes (..., D/2), the low nibble first."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def _items(name: str, tensor: Tensor) -> Tensor:
    return unpack(tensor) if name == "q_packed" else tensor


def _differs(expected: Tensor, actual: Tensor) -> Tensor:
    """Bytes that differ; floats whose bits differ, NaN with NaN being equal."""
    if expected.dtype == torch.uint8:
        return expected != actual
    bits = torch.int16 if expected.dtype == torch.bfloat16 else torch.int32
    return (expected.view(bits) != actual.contiguous().view(bits)) & ~(expected.isnan() & actual.isnan())


def _ordered(name: str, items: Tensor) -> Tensor:
    """Integers in the order of the values, so that neighbours differ by 1: sign and magnitude to two's complement."""
    if items.dtype == torch.uint8:
        if name == "q_scale":
            return items.to(torch.int64)
        sign, bits = (8, items.to(torch.int64)) if name == "q_packed" else (0x80, items.to(torch.int64))
    elif items.dtype == torch.bfloat16:
        sign, bits = 0x8000, items.view(torch.int16).to(torch.int64) & 0xFFFF
    else:
        sign, bits = 0x80000000, items.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    magnitude = bits & (sign - 1)
    return torch.where(bits >= sign, -magnitude, magnitude)


def _difference(
    name: str, start: int, index: tuple[int, ...], expected: tuple[Tensor, Tensor], actual: tuple[Tensor, Tensor]
) -> Difference:
    token, head, *rest = index
    dim = rest[0] if rest else None
    raw = tuple(
        _hex(tensor[0], (token, head, *((dim // 2 if name == "q_packed" else dim,) if dim is not None else ())))
        for tensor in (expected, actual)
    )
    value = tuple(_value(name, tensor[1][index]) for tensor in (expected, actual))
    if name == "q_scale" and dim is not None:
        dim *= _abi.MX_BLOCK
    return Difference(start + token, head, dim, raw[0], raw[1], value[0], value[1])


def _hex(tensor: Tensor, index: tuple[int, ...]) -> str:
    item = tensor[index].contiguous()
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[item.element_size()]
    bits = int(item.view(width)) & ((1 << 8 * item.element_size()) - 1)
    return f"0x{bits:0{2 * item.element_size()}X}"


def _value(name: str, item: Tensor) -> float:
    if name == "q_fp8":
        return float(item.view(torch.float8_e4m3fn).float())
    if name == "q_packed":
        code = int(item)
        return -_E2M1[code & 7] if code & 8 else _E2M1[code & 7]
    if item.dtype == torch.uint8:
        return float("nan") if int(item) == 0xFF else 2.0 ** (int(item) - 127)
    return float(item)


def _extent(hits: Tensor) -> tuple[int, int, int, int]:
    found = hits.nonzero()
    if not len(found):
        return 0, 0, 0, len(hits)
    return len(found), int(found[0]), int(found[-1]) + 1, len(hits)
