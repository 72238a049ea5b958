"""A DeepSeek-V4 batch through both formats: what ran, what it saves, and what it costs in retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _abi, _compare, _explain, _variants, indexer, specs
from .conventions import Convention
from .dumps import Inputs
from .quantize import best_device

MODEL = "deepseek-v4"
TOKENS, KEYS, POSITIONS = 64, 8192, 65536
TOP_K = (64, 128, 256, 512, 1024, 2048)
SHOWN_TOP_K = (64, 512, 2048)  # 512 is what DeepSeek-V4 keeps of its compressed keys, 2048 DeepSeek-V3.2
TOKENS_AT_ONCE = 8  # logits of (tokens, heads, keys) fp32: 16 MiB
HOW_MADE = (
    f"{KEYS:,} keys in 64 topics, each key half topic and half noise; each query head leans to the topics of its "
    "token. A few channels are up to 8 times larger than the rest, as in real activations. Positions are random below "
    f"{POSITIONS:,}; keys are rotated and stay in bf16, so that only the queries' quantization is measured."
)


@dataclass(frozen=True)
class FormatResult:
    """One format. tensors: name to (shape, dtype); snr_db of every (token, head) row; recall by k in `TOP_K`."""

    fmt: str
    backend: str | None
    refused: Mapping[str, str]
    tensors: Mapping[str, tuple[tuple[int, ...], str]]
    output_bytes: int
    snr_db: Tensor
    recall: Mapping[int, float]

    @property
    def median_snr_db(self) -> float:
        """The typical row's signal-to-noise ratio in dB: the median."""
        return float(self.snr_db.median())


@dataclass(frozen=True)
class Result:
    """What `run` found. input_bytes are those of q in bf16; target is the device's architecture, or "cpu"."""

    device: str
    target: str
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    input_bytes: int
    formats: tuple[FormatResult, ...]


def run() -> Result:
    """Make the batch, quantize it in both formats on the best backend, and compare with the unquantized queries."""
    device = best_device()
    inputs, keys = batch(seed=0)
    inputs = Inputs(
        inputs.positions.to(device), inputs.q.to(device), inputs.cos_sin_cache.to(device), inputs.weights.to(device),
        inputs.weights_softmax_scale, inputs.weights_head_scale,
    )  # fmt: skip
    rotated = _rotated(inputs)
    exact_weights = inputs.weights.float() * (inputs.weights_softmax_scale * inputs.weights_head_scale)
    keys = keys.to(device)
    ranking = _logits(rotated, exact_weights, keys).topk(max(TOP_K), dim=-1).indices
    results = tuple(_run_format(fmt, inputs, rotated, exact_weights, keys, ranking) for fmt in ("fp8", "mxfp4"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    described = {name: _described(getattr(inputs, name)) for name in ("positions", "q", "cos_sin_cache", "weights")}
    target = _explanation("fp8", inputs).target
    return Result(name, target, described, inputs.q.numel() * inputs.q.element_size(), results)


def batch(seed: int) -> tuple[Inputs, Tensor]:
    """Return the inputs on the CPU, q being (TOKENS, 64, 128), and rotated keys (KEYS, 128) float32. See `HOW_MADE`."""
    model = specs.MODELS[MODEL]
    heads, head_dim, rope_dim = model.num_heads, model.head_dim, model.rope_dim
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    channels = 2.0 ** (normal(head_dim).abs() * 1.2).clamp(max=3.0)
    topics = normal(64, head_dim)
    of_key = torch.randint(0, 64, (KEYS,), generator=generator)
    keys = (topics[of_key] + normal(KEYS, head_dim)) * channels.rsqrt()
    of_token = torch.randint(0, 64, (TOKENS, 4), generator=generator)
    mixture = torch.softmax(2 * normal(TOKENS, heads, 4), -1)
    q = torch.einsum("thm,tmd->thd", mixture, topics[of_token]) + 0.7 * normal(TOKENS, heads, head_dim)
    q = q * channels * torch.exp(0.5 * normal(1, heads, 1))
    angles = torch.arange(POSITIONS)[:, None] * 10000.0 ** (-torch.arange(0, rope_dim, 2) / rope_dim)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(0, POSITIONS, (TOKENS + KEYS,), generator=generator)
    weights = normal(TOKENS, heads).abs().clamp(min=1e-3).bfloat16()
    inputs = Inputs(positions[:TOKENS], q.bfloat16(), cache, weights, head_dim**-0.5, heads**-0.5)
    rows = _variants.Rows(positions[TOKENS:], keys.bfloat16(), cache, weights[:, 0], 1.0, 1.0)
    return inputs, _variants.values(rows, Convention())


def _run_format(
    fmt: str, inputs: Inputs, rotated: Tensor, exact_weights: Tensor, keys: Tensor, ranking: Tensor
) -> FormatResult:
    codes, weights_out = indexer.fused_indexer_q_rope_quant(*_arguments(inputs), use_fp4=fmt == "mxfp4")
    if isinstance(codes, Tensor):
        outputs = {"q_fp8": codes, "weights_out": weights_out}
        decoded = codes.float()  # its row scale is in weights_out
        scale = weights_out / exact_weights
        restored = decoded * torch.exp2(scale.log2().round())[..., None]
    else:
        outputs = {"q_packed": codes[0], "q_scale": codes[1], "weights_out": weights_out}
        decoded = restored = _decode_mxfp4(*codes)
    noise = (rotated - restored).square().sum(-1)
    snr_db = 10 * torch.log10(rotated.square().sum(-1) / noise)
    top = _logits(decoded, weights_out, keys).topk(max(TOP_K), dim=-1).indices
    explanation = _explanation(fmt, inputs)
    return FormatResult(
        fmt,
        explanation.backend,
        explanation.reasons,
        {name: _described(tensor) for name, tensor in outputs.items()},
        sum(tensor.numel() * tensor.element_size() for name, tensor in outputs.items() if name != "weights_out"),
        snr_db.flatten().cpu(),
        {k: _recall(ranking[:, :k], top[:, :k]) for k in TOP_K},
    )


def _arguments(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor, float, float]:
    return (
        inputs.positions, inputs.q, inputs.cos_sin_cache, inputs.weights,
        inputs.weights_softmax_scale, inputs.weights_head_scale,
    )  # fmt: skip


def _explanation(fmt: str, inputs: Inputs) -> _explain.Explanation:
    return _explain.explain(*_arguments(inputs), use_fp4=fmt == "mxfp4")


def _described(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _rotated(inputs: Inputs) -> Tensor:
    """The queries that are quantized, (T, H, D) float32: rotated and rounded to bf16, nothing more."""
    positions = inputs.positions.repeat_interleave(inputs.q.shape[1])
    rows = _variants.Rows(positions, inputs.q.flatten(0, 1), inputs.cos_sin_cache, inputs.weights.flatten(), 1.0, 1.0)
    return _variants.values(rows, Convention()).view(inputs.q.shape)


def _decode_mxfp4(packed: Tensor, scale: Tensor) -> Tensor:
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=packed.device)
    codes = _compare.unpack(packed).long()
    values: Tensor = torch.cat((magnitudes, -magnitudes))[codes].unflatten(-1, (-1, _abi.MX_BLOCK))
    exponent = scale.unsqueeze(-1).view(torch.uint8).to(torch.float32) - 127
    decoded: Tensor = (values * torch.exp2(exponent)[..., None]).flatten(-2)
    return decoded


def _logits(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """The indexer's logits (T, KEYS): the sum over heads of weight * relu(q . k), as the MQA-logits kernels take it."""
    parts = [
        torch.einsum("thk,th->tk", torch.relu(q[rows] @ keys.T), weights[rows])
        for rows in (slice(start, start + TOKENS_AT_ONCE) for start in range(0, q.shape[0], TOKENS_AT_ONCE))
    ]
    return torch.cat(parts)


def _recall(expected: Tensor, actual: Tensor) -> float:
    """The share of the expected keys that were retrieved, over all tokens."""
    found = torch.zeros(expected.shape[0], KEYS, dtype=torch.bool, device=expected.device).scatter_(1, actual, True)
    return float(found.gather(1, expected).float().mean())
