"""IQ_OPS_CHECK=1: bad values are named with their first token; off, nothing is wired in."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
import torch

import cases
from iq_ops import _debug


def make(**changes):
    case = cases.random_case(1, tokens=20, num_heads=4, num_positions=50, edges=False)
    tensors = {
        "positions": case.positions, "q": case.q, "cos_sin_cache": case.cos_sin_cache, "weights": case.weights,
    }  # fmt: skip
    for name, (index, value) in changes.items():
        tensors[name][index] = value
    return tensors


def test_good_values_pass_and_padding_may_hold_anything():
    tensors = make(positions=(3, -1), q=((3, 1, 5), torch.nan), weights=((3, 0), torch.inf))
    _debug.check_values(**tensors)
    _debug.check_values(**{**tensors, **{name: tensors[name][:0] for name in ("positions", "q", "weights")}})
    tensors["positions"].fill_(-1)
    _debug.check_values(**{**tensors, "cos_sin_cache": tensors["cos_sin_cache"][:0]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": ([7, 9], 50)}, "positions: expected values below the 50 rows of the cache, got 50 at token 7"),
        ({"positions": (4, 2**31 - 1)}, "positions: expected values below .* got 2147483647 at token 4"),
        ({"q": ((6, 2, 77), -torch.inf)}, "q: expected finite values, got -inf at token 6, head 2, dim 77"),
        ({"weights": ((5, 3), torch.nan)}, "weights: expected finite values, got nan at token 5, head 3"),
        ({"weights": ((0, 1), -torch.inf)}, "weights: expected finite values, got -inf at token 0, head 1"),
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


def table(rope_dim, positions, dtype, base, factor=1.0):
    """(P, R/2, 2): cosine and sine, times YaRN's factor."""
    angles = torch.outer(positions.double(), base ** -(torch.arange(0, rope_dim, 2).double() / rope_dim))
    return (factor * torch.stack((angles.cos(), angles.sin()), dim=-1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rope_dim", [16, 32, 64, 128])
@pytest.mark.parametrize("base", [100.0, 1e4, 5e5, 1e7])
def test_pairs_are_told_from_halves_in_every_row(rope_dim, dtype, base):
    positions = torch.cat((torch.arange(8192), torch.arange(8192, 2**20, 131)))
    for factor in (1.0, 1.3689, 0.1, 30.0):
        rows = table(rope_dim, positions, dtype, base, factor)
        assert not _debug._are_pairs(rows.transpose(1, 2).flatten(1).float()).any()
        assert _debug._are_pairs(rows.flatten(1).float()).float().mean() > 0.99
        assert _debug._are_pairs(rows.flatten(1).float())[0], "position 0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_of_pairs_is_named_with_the_first_token_that_reads_it(dtype):
    tensors = make(positions=([0, 1], torch.tensor([-1, 0])))
    pairs = table(64, torch.arange(50), dtype, 1e4)
    for right in (pairs.transpose(1, 2).flatten(1), torch.ones(50, 64), torch.zeros(50, 64), torch.randn(50, 64)):
        _debug.check_values(**{**tensors, "cos_sin_cache": right})
    message = r"cos_sin_cache: expected rows of R/2 cosines, .* pairs in row 0, the position of token 1\. .*::2"
    with pytest.raises(ValueError, match=message):
        _debug.check_values(**{**tensors, "cos_sin_cache": pairs.flatten(1)})
    tensors["positions"].fill_(-1)
    _debug.check_values(**{**tensors, "cos_sin_cache": pairs.flatten(1)})


def test_tensors_that_the_op_refuses_are_left_to_it():
    tensors = make()
    wrong = {
        "cos_sin_cache": (torch.ones(50, 3), torch.ones(50, 0), torch.ones(50, 32, dtype=torch.complex64)),
        "weights": (tensors["weights"][:5], tensors["weights"][0]),
    }
    for name, values in wrong.items():
        for value in values:
            _debug.check_values(**{**tensors, name: value})


def test_the_message_speaks_the_names_it_is_given_and_survives_a_pickle():
    with pytest.raises(_debug.BadValueError) as caught:
        _debug.check_values(**make(q=((0, 0, 0), torch.nan)))
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.told({"q": "index_q"}) == str(again).replace(": q: ", ": index_q: ")


PROGRAM = """
import torch, iq_ops, cases
from iq_ops import _debug
def told(call, *arguments, **buffers):
    try:
        call(*arguments, **buffers)
        print("passed")
    except ValueError as error:
        assert type(error) is (_debug.BadValueError if call is raw else ValueError)
        print(error)
case = cases.random_case(1, tokens=4, edges=False)
case.q[2, 0, 0] = torch.nan
q_out, weights_out = torch.empty(case.q.shape, dtype=torch.uint8), torch.empty(case.weights.shape)
raw = torch.ops.iq_ops.indexer_q_fp8
told(iq_ops.fused_indexer_q_rope_quant, *case.positional)
told(iq_ops.fused_indexer_q_rope_quant_out, *case.positional, q_out=q_out, weights_out=weights_out)
told(iq_ops.fused_indexer_q_rope_quant_fp8_cutedsl, *case.positional[:6], q_out, weights_out)
told(raw, *case.positional[:6], q_out, weights_out)
with torch.profiler.profile():  # a public call that goes through the op
    told(iq_ops.fused_indexer_q_rope_quant, *case.positional)
"""


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_environment_turns_it_on_and_each_call_speaks_its_own_names(value):
    environment = {**os.environ, "IQ_OPS_CHECK": value, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    message = "IQ_OPS_CHECK=1: {}: expected finite values, got nan at token 2, head 0, dim 0. Remedy: "
    names = ["index_q", "index_q", "index_q", "q", "index_q"]
    expected = [message.format(name) for name in names] if value == "1" else ["passed"] * len(names)
    found = done.stdout.splitlines()
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True)), found
