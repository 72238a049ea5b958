"""The fusing that ptxas may do: a mul and an add or sub without rounding modifier become one fma.

PTX ISA, Floating-Point Instructions, add/sub/mul: an operation with an explicit rounding modifier is never contracted;
one without may be. But ptxas 13.4 makes one FFMA2 of a mul.rn.f32x2 and an add.rn.f32x2 (seen in the SASS of sm_100a),
so that f32x2 counts as open whatever it says. The interpreter fuses wherever it may and keeps the lines in
`Machine.fused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .instructions.pure import pure_op
from .syntax import Instruction, Register

if TYPE_CHECKING:
    from .machine import Machine, Threads


@dataclass(frozen=True)
class Product:
    """The operands of a mul without rounding modifier."""

    kind: str
    ftz: bool
    factors: tuple[np.ndarray, ...]
    threads: Threads


_TYPES = ("f32", "f64", "f32x2", "f16", "f16x2", "bf16", "bf16x2")
_EXPLICIT = ("rn", "rz", "rm", "rp", "sat", "relu")


def _contractible(ins: Instruction, *roots: str) -> bool:
    if ins.root not in roots or ins.modifiers[-1] not in _TYPES:
        return False
    mixed = ins.modifiers[-2:-1] == ("f32",)
    explicit = any(m in _EXPLICIT for m in ins.modifiers) and ins.modifiers[-1] != "f32x2"
    return not mixed and not explicit


def _negate(values: np.ndarray, kind: str) -> np.ndarray:
    """Flip the sign of every element, also of f32x2, for which the ISA has no neg."""
    element = {"f64": 64, "f32": 32, "f32x2": 32}.get(kind, 16)
    bits = np.ascontiguousarray(values).view(f"u{element // 8}")
    return (bits ^ bits.dtype.type(1 << element - 1)).view(values.dtype)


def remember_product(machine: Machine, ins: Instruction, values: list[np.ndarray], threads: Threads) -> None:
    """After a contractible mul: keep its factors with the register."""
    destination = ins.operands[0] if ins.operands else None
    if machine.contract and isinstance(destination, Register) and _contractible(ins, "mul"):
        factors = tuple(np.array(np.broadcast_to(value, len(threads))) for value in values)
        machine.products[destination.name] = Product(ins.modifiers[-1], "ftz" in ins.modifiers, factors, threads)


def contracted(
    machine: Machine, ins: Instruction, values: list[np.ndarray], threads: Threads
) -> tuple[np.ndarray, ...] | None:
    """The result of a contractible add or sub of such a product, fused; None if there is nothing to fuse."""
    if not machine.contract or not machine.products or not _contractible(ins, "add", "sub"):
        return None
    kind, ftz = ins.modifiers[-1], "ftz" in ins.modifiers
    for place, operand in enumerate(ins.operands[1:]):
        product = machine.products.get(operand.name) if isinstance(operand, Register) else None
        if product is None or (product.kind, product.ftz) != (kind, ftz):
            continue
        if not np.isin(threads, product.threads).all():
            continue
        rows = np.searchsorted(product.threads, threads)
        a, b = (factor[rows] for factor in product.factors)
        addend = values[1 - place]
        if ins.root == "sub":
            a, addend = (_negate(a, kind), addend) if place == 1 else (a, _negate(addend, kind))
        machine.fused.add(ins.line)
        modifiers = ("rn", "ftz", kind) if ftz else ("rn", kind)
        return pure_op("fma", modifiers, 3).compute(a, b, addend)
    return None
