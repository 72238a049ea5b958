"""Fixtures of the command-line tests: inputs, and the dump that an engine of a given convention writes."""

from __future__ import annotations

import pytest
import torch

from iq_ops import _variants, dumps, files
from iq_ops.conventions import Convention


def make_inputs(num_tokens=48, num_heads=6, head_dim=128, rope_dim=64, num_positions=512, seed=0):
    """Random inputs with rows that show the fine points: zeros, signed zeros, tiny rows, powers of two, E2M1 ties."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(num_tokens, num_heads, head_dim, generator=generator).bfloat16()
    q[1], q[2, :, ::2], q[3] = 0.0, -0.0, q[3] * 1e-6
    q[4] = torch.tensor([0.25, -0.75, 1.25, 1.75, 2.5, -3.5, 5.0, 6.0]).repeat(head_dim // 8).bfloat16()
    q[5] = q[5] * 1e-11
    frequencies = 1e4 ** (-torch.arange(0, rope_dim, 2) / rope_dim)
    angles = torch.arange(num_positions)[:, None] * frequencies
    cache = torch.cat((angles.cos(), angles.sin()), -1)
    positions = torch.randint(1, num_positions - 1, (num_tokens,), generator=generator)
    weights = torch.randn(num_tokens, num_heads, generator=generator)
    return dumps.Inputs(positions, q, cache, weights, head_dim**-0.5, num_heads**-0.5)


def engine_dump(inputs, convention, fmt, weights_dtype=torch.float32):
    """What an engine of `convention` would dump."""
    num_tokens, num_heads, _ = inputs.q.shape
    rows = _variants.Rows(
        inputs.positions.repeat_interleave(num_heads),
        inputs.q.flatten(0, 1),
        inputs.cos_sin_cache,
        inputs.weights.flatten(),
        inputs.weights_softmax_scale,
        inputs.weights_head_scale,
    )
    codes, scale = _variants.codes_and_scale(_variants.values(rows, convention), convention, fmt)
    fp8_scale = scale if fmt == "fp8" else None
    weights_out = _variants.weights_out(rows, convention, fp8_scale, weights_dtype)
    shape = (num_tokens, num_heads)
    return dumps.Dump(
        fmt,
        inputs,
        codes.unflatten(0, shape),
        None if fmt == "fp8" else scale.unflatten(0, shape),
        weights_out.view(shape),
    )


def tensors_of(dump):
    """The tensors of a dump under their names in a file."""
    tensors = {name: getattr(dump.inputs, name) for name in dumps.INPUTS}
    if dump.fmt == "fp8":
        return {**tensors, "q_fp8": dump.codes.view(torch.float8_e4m3fn), "weights_out": dump.weights_out}
    return {**tensors, "q_packed": dump.codes, "q_scale": dump.scale, "weights_out": dump.weights_out}


@pytest.fixture(scope="session")
def inputs():
    return make_inputs()


@pytest.fixture
def make_dump(inputs):
    """`make_dump(fmt, **axes)`: the dump of an engine that differs from the contract on these axes."""

    def make(fmt, weights_dtype=torch.float32, of=None, **axes):
        return engine_dump(of or inputs, Convention(**axes), fmt, weights_dtype)

    return make


@pytest.fixture(name="make_inputs")
def make_inputs_fixture():
    return make_inputs


@pytest.fixture
def save(tmp_path):
    """`save(dump, **changes)`: write a dump, with tensors replaced or (None) left out, and return the path."""

    def write(dump, metadata=None, name="dump.safetensors", **changes):
        tensors = {**tensors_of(dump), **changes}
        path = tmp_path / name
        files.write(path, {name: tensor for name, tensor in tensors.items() if tensor is not None}, metadata or {})
        return path

    return write
