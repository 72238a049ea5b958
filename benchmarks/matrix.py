"""Which device cases are measured, in an order that shares inputs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

TOKENS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
FORMATS = ("fp8", "mxfp4")
BACKENDS = ("cute", "triton")
FEW_HEADS = (32, 8)  # tensor parallelism divides the heads; tokens grow in proportion, so that q has equal bytes
FEW_HEADS_TOKENS = (1, 64, 256, 1024, 4096, 16384)  # at 64 heads
LONGEST_IN_L2 = 256  # up to here inputs of the usual number of sets may stay in L2, so these are measured cold as well
RATIO_FROM = 512  # from here on a case is judged by its ratio to the cast, below by its time
QUICK_TOKENS = (1, 64, 512, 4096)


@dataclass(frozen=True)
class Case:
    """One device case. residency: "peers" (rotating sets), or "cold" (the L2 evicted before each replay as well)."""

    fmt: str
    backend: str
    hadamard: bool
    num_heads: int
    tokens: int
    residency: str

    @property
    def id(self) -> str:
        """How the case is called in a report."""
        transform = "hadamard" if self.hadamard else "plain"
        return f"{self.fmt}-{self.backend}-{transform}-h{self.num_heads}-t{self.tokens}-{self.residency}"

    @property
    def quick(self) -> bool:
        """Whether `-m quick` takes it."""
        usual = self.num_heads == 64 and self.residency == "peers" and self.tokens in QUICK_TOKENS
        return usual and (not self.hadamard or self.tokens == QUICK_TOKENS[-1])

    @property
    def gate(self) -> str:
        """What compare.py judges it by: "ratio" to the cast, or "us"."""
        return "ratio" if self.tokens * self.num_heads >= RATIO_FROM * 64 else "us"


def cases() -> list[Case]:
    """Every case; those of one shape follow each other."""
    found = []
    for tokens in TOKENS:
        residencies = ("peers", "cold") if tokens <= LONGEST_IN_L2 else ("peers",)
        for residency, fmt, hadamard, backend in itertools.product(residencies, FORMATS, (False, True), BACKENDS):
            found.append(Case(fmt, backend, hadamard, 64, tokens, residency))
        if tokens in FEW_HEADS_TOKENS:
            for num_heads, fmt, backend in itertools.product(FEW_HEADS, FORMATS, BACKENDS):
                found.append(Case(fmt, backend, False, num_heads, tokens * 64 // num_heads, "peers"))
    return found


def parameters() -> list[object]:
    """The cases for pytest.mark.parametrize("case", ...)."""
    return [pytest.param(case, id=case.id, marks=[pytest.mark.quick] if case.quick else []) for case in cases()]
