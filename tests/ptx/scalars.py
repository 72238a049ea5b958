"""The scalar types of PTX: widths and the numpy view that an instruction of each type reads and writes.

Source: PTX ISA, Types (fundamental types, packed types, alternate floating-point formats). bf16 and all packed or
narrow formats are viewed as their bits; `formats.py` gives them values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scalar:
    """`bits` of storage, and the numpy dtype through which an instruction of this type sees a register."""

    name: str
    bits: int
    view: np.dtype

    @property
    def signed(self) -> bool:
        """Whether a wider register gets copies of the sign bit."""
        return self.view.kind == "i"

    @property
    def storage(self) -> np.dtype:
        """The unsigned dtype a register of this width is stored in."""
        return STORAGE[self.bits]


STORAGE = {1: np.dtype(bool), **{bits: np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)}}


def _scalars() -> dict[str, Scalar]:
    table = {"pred": Scalar("pred", 1, np.dtype(bool))}
    for bits in (8, 16, 32, 64):
        for letter, kind in (("b", "u"), ("u", "u"), ("s", "i")):
            name = f"{letter}{bits}"
            table[name] = Scalar(name, bits, np.dtype(f"{kind}{bits // 8}"))
    for name, view in (("f16", "f2"), ("f32", "f4"), ("f64", "f8")):
        table[name] = Scalar(name, int(name[1:]), np.dtype(view))
    # Formats without a numpy dtype, and vectors packed in one register, are their bits.
    packed = {
        "bf16": 16, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "f32x2": 64,
        "e4m3x2": 16, "e5m2x2": 16, "e2m1x2": 8, "ue8m0x2": 16,
    }  # fmt: skip
    for name, bits in packed.items():
        table[name] = Scalar(name, bits, STORAGE[bits])
    return table


SCALARS = _scalars()
