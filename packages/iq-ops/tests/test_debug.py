"""IQ_OPS_CHECK=1: bad values are named with their first token; off, nothing is wired in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import cases
from iq_ops import _debug


def make(**changes):
    case = cases.random_case(1, tokens=20, num_heads=4, num_positions=50, edges=False)
    tensors = {"positions": case.positions, "q": case.q, "cos_sin_cache": case.cos_sin_cache}
    for name, (index, value) in changes.items():
        tensors[name][index] = value
    return tensors


def test_good_values_pass_and_padding_may_hold_anything():
    tensors = make(positions=(3, -1), q=((3, 1, 5), torch.nan))
    _debug.check_values(**tensors)
    _debug.check_values(tensors["positions"][:0], tensors["q"][:0], tensors["cos_sin_cache"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": ([7, 9], 50)}, "positions: expected values below the 50 rows of the cache, got 50 at token 7"),
        ({"positions": (4, 2**31 - 1)}, "positions: expected values below .* got 2147483647 at token 4"),
        ({"q": ((6, 2, 77), -torch.inf)}, "q: expected finite values, got -inf at token 6, head 2, dim 77"),
        ({"q": ((slice(11, 13), 0, 0), torch.nan)}, "q: expected finite values, got nan at token 11, head 0, dim 0"),
    ],
)
def test_the_first_bad_token_is_named(change, message):
    with pytest.raises(ValueError, match="IQ_OPS_CHECK=1: " + message):
        _debug.check_values(**make(**change))


def test_a_bad_cache_row_is_named_with_the_first_token_that_reads_it():
    tensors = make()
    row = int(tensors["positions"][2])
    first = int((tensors["positions"] == row).nonzero()[0])
    tensors["cos_sin_cache"][row, 3] = torch.nan
    with pytest.raises(ValueError, match=f"cos_sin_cache: .* in row {row}, the position of token {first}"):
        _debug.check_values(**tensors)
    unread = next(row for row in range(50) if row not in tensors["positions"].tolist())
    tensors = make(cos_sin_cache=(unread, torch.inf))
    _debug.check_values(**tensors)


PROGRAM = """
import torch, iq_ops, cases
case = cases.random_case(1, tokens=4, edges=False)
case.q[2, 0, 0] = torch.nan
outputs = torch.empty(case.q.shape, dtype=torch.uint8), torch.empty(case.weights.shape)
for call, arguments in (
    (iq_ops.fused_indexer_q_rope_quant, case.positional),
    (torch.ops.iq_ops.indexer_q_fp8, (*case.positional[:6], *outputs)),
):
    try:
        call(*arguments)
        print("passed")
    except ValueError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("value", "message"),
    [("1", "IQ_OPS_CHECK=1: q: expected finite values, got nan at token 2, head 0, dim 0"), ("0", "passed")],
)
def test_the_environment_turns_it_on_for_public_calls_and_for_the_op(value, message):
    environment = {**os.environ, "IQ_OPS_CHECK": value, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert [message in line for line in done.stdout.splitlines()] == [True, True]
