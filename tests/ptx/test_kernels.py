"""Every kernel's bits without a GPU: golden vectors, odd shapes, layouts and dtypes, from sm_80 to sm_120."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pytest
import torch

from tests import cases
from tests.ptx.backends import (
    CUTE,
    TARGETS,
    TRITON,
    Program,
    difference,
    for_other_lengths,
    interpret,
    launched,
)

BACKENDS = (CUTE, TRITON)


def check(program: Program, case: cases.Case, expected: dict[str, torch.Tensor]) -> None:
    """Interpret a program on a case, compare every byte, and see that ptxas may not fuse anything."""
    execution = interpret(program, case)
    problem = difference(execution, expected)
    assert problem is None, f"{program.label}: {problem}"
    assert not execution.machine.fused, f"{program.label}: PTX lines {sorted(execution.machine.fused)} may be fused"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", cases.golden_names())
@pytest.mark.parametrize("backend", BACKENDS)
def test_golden(backend: str, name: str, target: str) -> None:
    case = cases.golden(name)
    check(launched(backend, case, target), case, case.expected)


# Each of these has a partial last block: 3 tokens of 5 heads and the like. The first twelve rows of a case are edges.
OPTIONS = cases.OPTION_COMBINATIONS
RANDOM: dict[str, dict[str, Any]] = {
    "3x5": {"tokens": 3, "num_heads": 5, **OPTIONS[0]},
    "1x1": {"tokens": 1, "num_heads": 1, "edges": False, **OPTIONS[1]},
    "7x3": {"tokens": 7, "num_heads": 3, "head_dim": 64, "rope_dim": 48, **OPTIONS[2]},
    "slice": {"tokens": 25, "num_heads": 3, "layout": "slice", "positions_dtype": torch.int32, **OPTIONS[3]},
    "permuted": {"tokens": 13, "num_heads": 6, "layout": "permuted", "weights_dtype": torch.float16, **OPTIONS[4]},
    "heads": {"tokens": 25, "num_heads": 5, "layout": "every_other_head", "cache_dtype": torch.bfloat16, **OPTIONS[5]},
    "narrow": {"tokens": 26, "num_heads": 2, "head_dim": 32, "rope_dim": 16, "weights_dtype": torch.float32,
               **OPTIONS[6]},
    "wide": {"tokens": 25, "num_heads": 3, "head_dim": 256, "rope_dim": 256, "weights_out_dtype": torch.bfloat16,
             **OPTIONS[7]},
}  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("backend", BACKENDS)
def test_shapes_layouts_and_dtypes(backend: str, name: str, fmt: str, target: str) -> None:
    case = cases.random_case(len(name), fmt=fmt, **RANDOM[name])
    check(launched(backend, case, target), case, cases.reference(case))


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("layout", ["contiguous", "slice"])
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_cutes_variants_for_other_lengths(fmt: str, layout: str, target: str) -> None:
    """What cute launches for longer inputs, on few tokens, with every number of heads a thread and a partial block."""
    for hadamard, heads in ((False, 64), (True, 12)):
        case = cases.random_case(8, fmt=fmt, tokens=25, num_heads=heads, layout=layout, hadamard=hadamard)
        expected = cases.reference(case)
        for program in for_other_lengths(case, target):
            check(program, case, expected)


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_unaligned_inputs_take_the_element_by_element_kernel(fmt: str) -> None:
    """An odd storage offset: triton reads one element at a time, cute refuses."""
    case = cases.random_case(4, fmt=fmt, tokens=9, num_heads=3, layout="offset")
    check(launched(TRITON, case, "sm_90"), case, cases.reference(case))
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        launched(CUTE, case, "sm_90")


@pytest.mark.parametrize("target", ["sm_80", "sm_100"])
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_tritons_larger_tiles(fmt: str, target: str) -> None:
    """The variants for longer inputs, chosen here for few tokens: tiles of one token, and of several."""
    from iq_kernels_triton.indexer_q import config

    op = f"indexer_q_{fmt}"
    for (_, *tile), heads in itertools.product(config.TILES[op][1:], (64, 5)):
        with mock.patch.dict(config.TILES, {op: ((None, *tile),)}):
            case = cases.random_case(5, fmt=fmt, tokens=25, num_heads=heads)
            check(launched(TRITON, case, target), case, cases.reference(case))


@pytest.mark.parametrize("num_heads", [8, 5, 3, 1])
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_tritons_rows_of_several_tokens(fmt: str, num_heads: int) -> None:
    """The largest tile over few heads, with rows past the end: some tokens, every option and layout in turn."""
    from iq_kernels_triton.indexer_q import config

    op = f"indexer_q_{fmt}"
    with mock.patch.dict(config.TILES, {op: ((None, *config.TILES[op][-1][1:]),)}):
        for turn, tokens in enumerate((1, 2, 7, 33), start=num_heads):
            case = cases.random_case(
                turn, fmt=fmt, tokens=tokens, num_heads=num_heads, layout=cases.LAYOUTS[turn % 5],
                cache_dtype=(torch.float32, torch.bfloat16)[turn % 2], **OPTIONS[3 * turn % 8],
            )  # fmt: skip
            check(launched(TRITON, case, "sm_90"), case, cases.reference(case))


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_and_poison_alone(backend: str) -> None:
    """A whole block of padding tokens, and one where every row holds a NaN."""
    for fmt in cases.FORMATS:
        case = cases.random_case(6, fmt=fmt, tokens=40, num_heads=4, edges=False)
        case.positions[:] = -1
        check(launched(backend, case, "sm_100"), case, cases.reference(case))
        case = cases.random_case(7, fmt=fmt, tokens=40, num_heads=4, edges=False)
        case.q[..., 5] = torch.nan
        check(launched(backend, case, "sm_100"), case, cases.reference(case))


def test_the_interpreter_finds_the_first_differing_thread() -> None:
    case = cases.golden("v4_fp8")
    execution = interpret(launched(CUTE, case, "sm_90"), case)
    changed = {name: value.clone() for name, value in case.expected.items()}
    changed["q_fp8"][3, 2, 1] ^= 1
    problem = difference(execution, changed)
    assert problem is not None
    assert "first at token 3, head 2, dim 1" in problem
    assert "written by block (" in problem
    assert "at PTX line" in problem
    assert difference(execution, case.expected) is None
