"""Inputs, poisoned outputs and byte comparison that every test and benchmark of the house shares.

A `Case` is one raw call: four inputs, two scales, the options. `golden(name)` loads one from tests/golden,
`random_case` makes one from a seed. `run` calls a raw function into poisoned buffers with a sentinel row after the
last token, and `assert_same` names the first token, head and dim that differ, with both bytes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

GOLDEN = Path(__file__).parent / "golden"
FORMATS = ("fp8", "mxfp4")
LAYOUTS = ("contiguous", "slice", "permuted", "offset", "every_other_head")
POISON = 0xA5
EDGE_ROWS = 12

OPTION_COMBINATIONS = tuple(
    {"rope_style": style, "rope_at": place, "hadamard": hadamard}
    for style, place, hadamard in itertools.product(("interleaved", "neox"), ("tail", "head"), (False, True))
)


@dataclass(frozen=True)
class Case:
    """One call of a raw function. `expected` holds output bytes by ABI name where they are known beforehand."""

    name: str
    fmt: str
    positions: Tensor
    q: Tensor
    cos_sin_cache: Tensor
    weights: Tensor
    softmax_scale: float
    head_scale: float
    options: dict[str, Any]
    weights_out_dtype: torch.dtype = torch.float32
    expected: dict[str, Tensor] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """The operation's name in the ABI."""
        return f"indexer_q_{self.fmt}"

    @property
    def inputs(self) -> dict[str, Any]:
        """Every raw keyword argument but the outputs."""
        return {
            "positions": self.positions,
            "q": self.q,
            "cos_sin_cache": self.cos_sin_cache,
            "weights": self.weights,
            "weights_softmax_scale": self.softmax_scale,
            "weights_head_scale": self.head_scale,
            **self.options,
        }

    def workload_fields(self, target: str, device_index: int | None = None) -> dict[str, Any]:
        """What a package's `_abi.Workload` says of this case."""
        named = ("positions", "cos_sin_cache", "weights")
        dtypes = {name: getattr(self, name).dtype for name in named} | {"weights_out": self.weights_out_dtype}
        return {
            "op": self.op,
            "num_heads": self.q.shape[1],
            "head_dim": self.q.shape[2],
            "rope_dim": self.cos_sin_cache.shape[1],
            **{f"{name}_dtype": str(dtype).removeprefix("torch.") for name, dtype in dtypes.items()},
            **self.options,
            "target": target,
            "device_index": device_index,
        }

    @property
    def positional(self) -> tuple[Any, ...]:
        """The positional arguments of `fused_indexer_q_rope_quant`, up to and with use_fp4 and weights_out_dtype."""
        inputs = (self.positions, self.q, self.cos_sin_cache, self.weights, self.softmax_scale, self.head_scale)
        return (*inputs, self.fmt == "mxfp4", self.weights_out_dtype)

    def output_shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each raw output, by its ABI name."""
        tokens, heads, head_dim = self.q.shape
        if self.fmt == "fp8":
            quantized = {"q_fp8": ((tokens, heads, head_dim), torch.uint8)}
        else:
            quantized = {
                "q_packed": ((tokens, heads, head_dim // 2), torch.uint8),
                "q_scale": ((tokens, heads, head_dim // 32), torch.uint8),
            }
        return {**quantized, "weights_out": ((tokens, heads), self.weights_out_dtype)}

    def to(self, device: str | torch.device) -> Case:
        """The same case on another device: strides are kept, storage offsets are not."""
        moved = {name: _move(getattr(self, name), device) for name in ("positions", "q", "cos_sin_cache", "weights")}
        return replace(self, **moved, expected={name: value.to(device) for name, value in self.expected.items()})


def golden_names() -> list[str]:
    """Names of every golden case."""
    return sorted(path.stem for path in GOLDEN.glob("*.npz"))


def golden(name: str, device: str = "cpu") -> Case:
    """Load one golden case; its expected outputs come along."""
    with np.load(GOLDEN / f"{name}.npz") as stored:
        arrays = {key: torch.from_numpy(stored[key].copy()) for key in stored.files if key != "options"}
        options = json.loads(str(stored["options"]))

    def widened(array: Tensor) -> Tensor:
        return array.view(torch.bfloat16) if array.dtype == torch.uint16 else array

    fmt = options.pop("format")
    names = {"q_fp8": "codes"} if fmt == "fp8" else {"q_packed": "codes", "q_scale": "scales"}
    names["weights_out"] = "weights_out"
    case = Case(
        name=name,
        fmt=fmt,
        positions=arrays["positions"],
        q=widened(arrays["q"]),
        cos_sin_cache=widened(arrays["cache"]),
        weights=arrays["weights"],
        softmax_scale=options.pop("weights_softmax_scale"),
        head_scale=options.pop("weights_head_scale"),
        options=options,
        expected={name: arrays[stored_name] for name, stored_name in names.items()},
    )
    return case.to(device)


def random_case(
    seed: int = 0,
    *,
    fmt: str = "fp8",
    tokens: int = 17,
    num_heads: int = 8,
    head_dim: int = 128,
    rope_dim: int = 64,
    num_positions: int = 300,
    positions_dtype: torch.dtype = torch.int64,
    cache_dtype: torch.dtype = torch.float32,
    weights_dtype: torch.dtype = torch.bfloat16,
    weights_out_dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
    edges: bool = True,
    device: str | torch.device = "cpu",
    **options: Any,
) -> Case:
    """Make one deterministic case of a seed and a device; `edges` puts up to 12 edge rows first.

    layout: "contiguous"; "slice" of wider projections; "permuted" views; "offset", an odd storage offset;
    "every_other_head". It shapes q, weights, positions and the cache alike, within what the contract allows.
    """
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    magnitude = torch.randint(-12, 13, (tokens, num_heads, 1), generator=generator, device=device)
    q = torch.empty(tokens, num_heads, head_dim, dtype=torch.bfloat16, device=device)
    step = max(1, (1 << 26) // (num_heads * head_dim))  # bounds the float32 temporaries of a long case
    for start in range(0, tokens, step):
        rows = slice(start, start + step)
        # Not torch.ldexp: PyTorch 2.11's faults on a GPU that is not the current one.
        q[rows] = normal(*q[rows].shape) * torch.exp2(magnitude[rows].float())
    angles = normal(num_positions, rope_dim // 2) * 100
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1).to(cache_dtype)
    positions = torch.randint(num_positions, (tokens,), generator=generator, device=device, dtype=torch.int64).to(
        positions_dtype
    )
    weights = normal(tokens, num_heads).to(weights_dtype)
    if edges:
        _write_edges(seed, positions, q, num_positions)
    return Case(
        name=f"random{seed}",
        fmt=fmt,
        positions=_laid_out_positions(positions, layout),
        q=_laid_out_q(q, layout),
        cos_sin_cache=_laid_out_rows(cache, layout),
        weights=_laid_out_weights(weights, layout),
        softmax_scale=head_dim**-0.5,
        head_scale=num_heads**-0.5,
        options={"rope_style": "interleaved", "rope_at": "tail", "hadamard": False, **options},
        weights_out_dtype=weights_out_dtype,
    )


def poisoned_outputs(case: Case, sentinel_rows: int = 1) -> dict[str, Tensor]:
    """Buffers with `sentinel_rows` more rows than tokens, every byte POISON. Pass `buffer[:tokens]` to the kernel."""
    buffers = {}
    for name, (shape, dtype) in case.output_shapes().items():
        raw = torch.full((*(shape[0] + sentinel_rows, *shape[1:-1]), shape[-1] * dtype.itemsize), POISON,
                         dtype=torch.uint8, device=case.q.device)  # fmt: skip
        buffers[name] = raw.view(dtype)
    return buffers


def run(raw: Callable[..., None], case: Case) -> dict[str, Tensor]:
    """Call a raw function into poisoned buffers; check that the sentinel row stayed intact; return the T rows."""
    buffers = poisoned_outputs(case)
    tokens = case.q.shape[0]
    result = raw(**case.inputs, **{name: buffer[:tokens] for name, buffer in buffers.items()})
    assert result is None, f"a raw function returns None, this one returned {type(result).__name__}"
    for name, buffer in buffers.items():
        assert bool((buffer[tokens:].view(torch.uint8) == POISON).all()), f"{name}: written past row {tokens - 1}"
    return {name: buffer[:tokens] for name, buffer in buffers.items()}


def reference(case: Case) -> dict[str, Tensor]:
    """What the reference backend writes for a case, on the case's device."""
    from iq_ops import reference as definition

    return run(getattr(definition, case.op), case)


def first_difference(name: str, actual: Tensor, expected: Tensor) -> str | None:
    """Say where two outputs first differ, bit for bit; any NaN equals any NaN in weights_out. None: equal."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{name}: {expected.dtype} {tuple(expected.shape)} expected, got {actual.dtype} {tuple(actual.shape)}"
    if torch.equal(_bits(actual), _bits(expected)):
        return None
    differs = _bits(actual) != _bits(expected)
    if actual.dtype.is_floating_point and actual.dtype.itemsize > 1:
        differs &= ~(actual.isnan() & expected.isnan())
    if not bool(differs.any()):
        return None
    where = tuple(differs.nonzero()[0].tolist())
    labels = ("token", "head", {"q_packed": "byte", "q_scale": "block"}.get(name, "dim"))
    place = ", ".join(f"{label} {index}" for label, index in zip(labels, where, strict=False))
    width = actual.dtype.itemsize * 2
    got, want = (int(_bits(tensor)[where].item()) & (1 << 4 * width) - 1 for tensor in (actual, expected))
    return f"{name}: {int(differs.sum())} differ, first at {place}: got 0x{got:0{width}X}, expected 0x{want:0{width}X}"


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], context: object = "") -> None:
    """Fail at the first output that differs from what is expected."""
    assert actual.keys() == expected.keys(), f"{sorted(actual)} != {sorted(expected)}"
    for name, value in expected.items():
        difference = first_difference(name, actual[name], value)
        assert difference is None, f"{difference} {context}"


def check_result(case: Case, result: tuple[Any, Tensor]) -> None:
    """Fail where what `iq_ops.fused_indexer_q_rope_quant` returned is not, byte for byte, what the reference writes."""
    assert_same(raw_outputs(case, result), reference(case), case.name)


def raw_outputs(case: Case, result: tuple[Any, Tensor]) -> dict[str, Tensor]:
    """Turn what `iq_ops.fused_indexer_q_rope_quant` returns into raw byte outputs by their ABI names."""
    quantized, weights_out = result
    if case.fmt == "fp8":
        return {"q_fp8": quantized.view(torch.uint8), "weights_out": weights_out}
    packed, scale = quantized
    if scale.dtype == torch.int32:
        scale = scale[..., None].view(torch.uint8)
    return {"q_packed": packed, "q_scale": scale, "weights_out": weights_out}


def edge_rows(head_dim: int) -> Iterator[Tensor]:
    """The (D,) float32 contents of each edge row of q, in order."""
    dims = torch.arange(head_dim)
    alternate = 1.0 - 2.0 * (dims % 2)
    yield torch.zeros(head_dim)
    yield torch.full((head_dim,), -0.0)
    yield torch.where(dims == 3, torch.nan, 1.0)
    yield torch.where(dims == head_dim - 1, -torch.inf, 2.0)
    yield torch.full((head_dim,), 2.0**-133) * alternate  # bf16 subnormals
    yield torch.full((head_dim,), 3.0e38) * alternate
    yield torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])[dims % 8] * alternate  # E2M1 ties
    yield torch.exp2((dims % 16 - 8).float()) * alternate
    yield torch.where(dims == 0, 448.0, (dims % 30 + 0.5) * 2.0**-9)  # e4m3 ties among its subnormals
    yield torch.ones(head_dim)
    yield torch.full((head_dim,), 7.0)
    yield torch.full((head_dim,), -1.0e-5)


def _write_edges(seed: int, positions: Tensor, q: Tensor, num_positions: int) -> None:
    """Overwrite the first rows: all edges where they fit, else those the seed picks. Half of the rows stay random."""
    tokens = q.shape[0]
    rows = list(edge_rows(q.shape[-1]))
    special_positions = (None,) * 7 + (0, -1, num_positions, 2**31 - 1, num_positions - 1)
    count = min(EDGE_ROWS, (tokens + 1) // 2)
    for token in range(count):
        edge = token if count == EDGE_ROWS else (seed + token) % EDGE_ROWS
        q[token] = rows[edge].to(q)
        position = special_positions[edge]
        if position is not None:
            positions[token] = position


def _bits(tensor: Tensor) -> Tensor:
    width = tensor.dtype.itemsize
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width])


def _move(tensor: Tensor, device: str | torch.device) -> Tensor:
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return moved.copy_(tensor)


def _laid_out_q(q: Tensor, layout: str) -> Tensor:
    tokens, heads, head_dim = q.shape
    if layout == "slice":
        wide = q.new_zeros(tokens, heads * head_dim + 96)
        view = wide[:, 32 : 32 + heads * head_dim].unflatten(1, (heads, head_dim))
    elif layout == "permuted":
        view = q.new_zeros(heads, tokens, head_dim).permute(1, 0, 2)
    elif layout == "offset":
        view = q.new_zeros(q.numel() + 1)[1:].view(q.shape)
    elif layout == "every_other_head":
        view = q.new_zeros(tokens, 2 * heads, head_dim)[:, ::2]
    else:
        return q
    return view.copy_(q)


def _laid_out_weights(weights: Tensor, layout: str) -> Tensor:
    tokens, heads = weights.shape
    if layout == "slice":
        view = weights.new_zeros(tokens, heads + 3)[:, 1 : 1 + heads]
    elif layout == "permuted":
        view = weights.new_zeros(heads, tokens).t()
    elif layout == "offset":
        view = weights.new_zeros(weights.numel() + 1)[1:].view(weights.shape)
    elif layout == "every_other_head":
        view = weights.new_zeros(tokens, 2 * heads)[:, ::2]
    else:
        return weights
    return view.copy_(weights)


def _laid_out_positions(positions: Tensor, layout: str) -> Tensor:
    if layout == "offset":
        return positions.new_zeros(len(positions) + 1)[1:].copy_(positions)
    if layout in ("permuted", "every_other_head"):
        return positions.new_zeros(2 * len(positions))[::2].copy_(positions)
    return positions


def _laid_out_rows(cache: Tensor, layout: str) -> Tensor:
    if layout == "contiguous":
        return cache
    return cache.new_zeros(cache.shape[0], cache.shape[1] + 16)[:, : cache.shape[1]].copy_(cache)


def aligned_copy(tensor: torch.Tensor, alignment: int = 256) -> torch.Tensor:
    """A contiguous copy whose first byte lies at a multiple of `alignment`, as CUDA's allocator places tensors."""
    size = tensor.numel() * tensor.element_size()
    room = torch.empty(size + alignment, dtype=torch.uint8, device=tensor.device)
    start = -room.data_ptr() % alignment
    return room[start : start + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
