"""The public functions: structure of the results, buffers of the caller's, and errors that name what to mend."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import cases
import iq_ops
from fake_providers import planting  # noqa: F401 - an autouse fixture
from iq_ops import IndexerQSpec, specs

quantize = iq_ops.fused_indexer_q_rope_quant
quantize_out = iq_ops.fused_indexer_q_rope_quant_out


@pytest.mark.parametrize("name", cases.golden_names())
def test_golden_vectors_come_out_of_the_public_function(name):
    case = cases.golden(name)
    result = quantize(*case.positional, spec=IndexerQSpec(**case.options))
    cases.assert_same(cases.raw_outputs(case, result), case.expected)


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_the_structure_of_the_results(head_dim, tokens):
    case = cases.random_case(1, tokens=tokens, head_dim=head_dim, rope_dim=32, num_heads=3, layout="permuted")
    q_fp8, weights_out = quantize(*case.positional)
    assert (q_fp8.dtype, q_fp8.shape) == (torch.float8_e4m3fn, (tokens, 3, head_dim))
    assert (weights_out.dtype, weights_out.shape) == (torch.float32, (tokens, 3))
    (q_packed, q_scale), weights_out = quantize(*case.positional[:6], True, torch.bfloat16)
    assert (q_packed.dtype, q_packed.shape) == (torch.uint8, (tokens, 3, head_dim // 2))
    expected = (torch.int32, (tokens, 3)) if head_dim == 128 else (torch.uint8, (tokens, 3, head_dim // 32))
    assert (q_scale.dtype, q_scale.shape) == expected
    assert weights_out.dtype == torch.bfloat16
    for tensor in (q_fp8, q_packed, q_scale, weights_out):
        assert tensor.is_contiguous()
        assert tensor.device == case.q.device


def test_keywords_and_positions_mean_the_same():
    case = cases.random_case(2, fmt="mxfp4")
    by_name = quantize(
        positions=case.positions, index_q=case.q, index_q_cos_sin_cache=case.cos_sin_cache, index_weights=case.weights,
        index_weights_softmax_scale=case.softmax_scale, index_weights_head_scale=case.head_scale, use_fp4=True,
        weights_out_dtype=torch.float32,
    )  # fmt: skip
    cases.assert_same(cases.raw_outputs(case, by_name), cases.raw_outputs(case, quantize(*case.positional)))


@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("weights_out_dtype", [torch.float32, torch.bfloat16])
def test_out_writes_the_same_bits_into_slices_of_larger_buffers(fmt, weights_out_dtype):
    case = cases.random_case(3, fmt=fmt, layout="slice", weights_out_dtype=weights_out_dtype, hadamard=True)
    buffers = cases.poisoned_outputs(case, sentinel_rows=2)
    tokens = case.q.shape[0]
    rows = {name: buffer[1 : 1 + tokens] for name, buffer in buffers.items()}
    q_out = rows["q_fp8"].view(torch.float8_e4m3fn) if fmt == "fp8" else rows["q_packed"]
    scale = rows["q_scale"].view(torch.int32).squeeze(-1) if fmt == "mxfp4" else None
    spec = specs.DEEPSEEK_V4_HADAMARD
    result = quantize_out(*case.positional, q_out=q_out, weights_out=rows["weights_out"], q_scale_out=scale, spec=spec)
    assert result is None
    cases.assert_same(rows, cases.reference(case))
    for name, buffer in buffers.items():
        for row in (buffer[0], buffer[-1]):
            assert bool((row.view(torch.uint8) == cases.POISON).all()), name


def test_out_takes_bytes_as_well_as_views():
    case = cases.random_case(3, fmt="mxfp4")
    buffers = cases.poisoned_outputs(case, 0)
    quantize_out(
        *case.positional, q_out=buffers["q_packed"], weights_out=buffers["weights_out"], q_scale_out=buffers["q_scale"]
    )
    cases.assert_same(buffers, cases.reference(case))


def test_two_results_never_share_memory():
    case = cases.random_case(4)
    first, second = quantize(*case.positional), quantize(*case.positional)
    kept = first[0].view(torch.uint8).clone()
    second[0].view(torch.uint8).fill_(cases.POISON)
    assert torch.equal(first[0].view(torch.uint8), kept)
    assert first[1].data_ptr() != second[1].data_ptr()


CASE = cases.random_case(5, tokens=6, num_heads=4)
WRONG_INPUTS = {
    "rank": ("q", CASE.q[0], ValueError, r"index_q: expected rank 3, shape \(T, H, D\), got rank 2, shape \(4, 128\)"),
    "dtype": ("q", CASE.q.float(), TypeError, r"index_q: expected dtype torch.bfloat16, got torch.float32.*\.to"),
    "stride": ("q", CASE.q.repeat(1, 1, 2)[..., ::2], ValueError, r"index_q: expected stride\(-1\) == 1, got strides"),
    "head_dim": (
        "q",
        CASE.q[..., :96],
        ValueError,
        r"index_q.shape\[2\]: expected a head dim of 32, 64, 128, 256, got 96.*there is none|q_out: expected size D",
    ),
    "tokens": (
        "positions",
        CASE.positions[:5],
        ValueError,
        r"index_q: expected size T = 5 .*pass positions and index_q of",
    ),
    "rank of positions": (
        "positions",
        CASE.positions[0],
        ValueError,
        r"positions: .*shape \(T,\), .*reshape it to \(T,\)",
    ),
    "positions": ("positions", CASE.positions.float(), TypeError, r"positions: expected dtype torch.int32 or"),
    "complex table": (
        "cos_sin_cache",
        torch.polar(torch.ones(9, 32), torch.rand(9, 32)),
        TypeError,
        r"got torch.complex64. Remedy: pass torch.cat\(\[(\w+)\.real, \1\.imag\], dim=-1\)\.float\(\), made once",
    ),
    "complex": ("weights", CASE.weights.to(torch.complex64), TypeError, "index_weights: .*Remedy: pass real numbers"),
    "heads": ("weights", CASE.weights[:, :3], ValueError, r"index_weights: expected size H = 4 in dim 1"),
    "weights": ("weights", CASE.weights.double(), TypeError, r"index_weights: expected dtype torch.bfloat16 or"),
    "rotary": ("cos_sin_cache", torch.ones(9, 160), ValueError, r"index_q_cos_sin_cache.shape\[1\]: expected a rotary"),
    "odd rotary": (
        "cos_sin_cache",
        torch.ones(9, 40),
        ValueError,
        "a multiple of 16, from 16 to the head dim 128, got",
    ),
    "device": (
        "weights",
        CASE.weights.to("meta"),
        ValueError,
        "index_weights: expected device cpu, where positions is",
    ),
    "no tensor": ("positions", [0] * 6, TypeError, "positions: expected a torch.Tensor, got list"),
    "grad": (
        "weights",
        CASE.weights.float().requires_grad_(),
        ValueError,
        "index_weights: expected a tensor that needs",
    ),
}


@pytest.mark.parametrize("what", WRONG_INPUTS)
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_a_wrong_input_is_named_with_what_was_expected_and_what_to_do(what, fmt):
    name, value, error, message = WRONG_INPUTS[what]
    wrong = replace(CASE, fmt=fmt, **{name: value})
    with pytest.raises(error, match=message) as caught:
        quantize(*wrong.positional)
    assert "Remedy: " in str(caught.value)
    with pytest.raises(error, match=message):
        iq_ops.explain(*wrong.positional)
    buffers = cases.poisoned_outputs(replace(CASE, fmt=fmt), 0)
    with pytest.raises(error, match=message):
        quantize_out(
            *wrong.positional, q_out=next(iter(buffers.values())), q_scale_out=buffers.get("q_scale"),
            weights_out=buffers["weights_out"],
        )  # fmt: skip
    assert all(bool((buffer.view(torch.uint8) == cases.POISON).all()) for buffer in buffers.values())


def test_inputs_that_require_grad_pass_where_no_grad_is_recorded():
    wrong = replace(CASE, q=CASE.q.clone().requires_grad_())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            cases.assert_same(cases.raw_outputs(CASE, quantize(*wrong.positional)), cases.reference(CASE))
    with pytest.raises(ValueError, match="index_q: expected a tensor that needs no gradient"):
        quantize(*wrong.positional)


def wrong_buffers():
    rows = cases.poisoned_outputs(CASE, 0)
    q_out, weights_out = rows["q_fp8"], rows["weights_out"]
    yield "dtype", {"q_out": q_out.view(torch.int8)}, TypeError, "q_out: expected dtype torch.uint8, got torch.int8"
    yield (
        "shape",
        {"q_out": q_out[:, :3]},
        ValueError,
        "q_out: expected size H = 4 .*allocate q_out with size 4 in dim 1",
    )
    yield "rows", {"q_out": q_out[:5]}, ValueError, "q_out: expected size T = 6 .*allocate q_out with size 6 in dim 0"
    yield "more rows", {"q_out": q_out.new_zeros(8, 4, 128)}, ValueError, r"q_out: .*Remedy: pass q_out\[:6\]\."
    strided = q_out.new_zeros(6, 4, 256)[..., :128]
    yield "strided", {"q_out": strided}, ValueError, "q_out: expected a contiguous tensor"
    yield (
        "weights",
        {"weights_out": weights_out.bfloat16()},
        TypeError,
        "weights_out: expected dtype torch.float32, got",
    )
    yield "scale", {"q_scale_out": q_out}, ValueError, "q_scale_out: expected None without use_fp4"
    overlap = CASE.q.view(torch.uint8).flatten()[: q_out.numel()].view(q_out.shape)
    yield "input", {"q_out": overlap}, ValueError, "q_out: expected memory of its own, apart from index_q"
    both = q_out.flatten()[16 : 16 + 6 * 4 * 4].view(torch.float32).view(6, 4)
    yield (
        "output",
        {"q_out": q_out, "weights_out": both},
        ValueError,
        "q_out: expected memory of its own, apart from weights_out",
    )


@pytest.mark.parametrize(("what", "buffers", "error", "message"), list(wrong_buffers()))
def test_a_wrong_buffer_is_an_error_and_nothing_is_written(what, buffers, error, message):
    good = cases.poisoned_outputs(CASE, 0)
    given = {"q_out": good["q_fp8"], "weights_out": good["weights_out"], **buffers}
    before = CASE.q.clone()
    with pytest.raises(error, match=message) as caught:
        quantize_out(*CASE.positional, **given)
    assert "Remedy: " in str(caught.value)
    assert torch.equal(CASE.q.view(torch.int16), before.view(torch.int16))
    assert all(bool((buffer.view(torch.uint8) == cases.POISON).all()) for buffer in good.values())


def test_overlap_is_refused_after_the_same_signature_passed():
    memory = torch.zeros(4 * CASE.q.numel(), dtype=torch.uint8)
    q = memory[: 2 * CASE.q.numel()].view(torch.bfloat16).view(CASE.q.shape).copy_(CASE.q)
    apart = memory[2 * CASE.q.numel() :][: CASE.q.numel()].view(CASE.q.shape)
    inside = memory[CASE.q.numel() :][: CASE.q.numel()].view(CASE.q.shape)
    weights_out = torch.empty(6, 4)
    arguments = replace(CASE, q=q).positional
    for _ in range(2):
        quantize_out(*arguments, q_out=apart, weights_out=weights_out)
        with pytest.raises(ValueError, match="q_out: expected memory of its own, apart from index_q"):
            quantize_out(*arguments, q_out=inside, weights_out=weights_out)


def test_what_passed_once_does_not_let_another_call_pass():
    """The second call shares all that chooses a backend with the first, and still is checked, and named."""
    aligned = {name: torch.empty(2 * 6 * 4 * 128, dtype=torch.uint8) for name in ("q_out", "weights_out")}
    q_out = aligned["q_out"][: 6 * 4 * 128].view(6, 4, 128)
    weights_out = aligned["weights_out"][: 6 * 4 * 4].view(torch.float32).view(6, 4)
    quantize_out(*CASE.positional, q_out=q_out, weights_out=weights_out)
    for wrong, message in (
        ({"q_out": q_out[:5]}, "q_out: expected size T = 6"),
        ({"q_out": q_out.view(6, 8, 64)}, "q_out: expected size H = 4"),
        ({"q_out": aligned["q_out"].view(6, 4, 256)[..., :128]}, "q_out: expected a contiguous tensor"),
        ({"weights_out": weights_out[:, :3]}, "weights_out: expected size H = 4"),
    ):
        with pytest.raises(ValueError, match=message):
            quantize_out(*CASE.positional, **{"q_out": q_out, "weights_out": weights_out, **wrong})
    with pytest.raises(ValueError, match="index_q: expected size T = 5"):
        quantize_out(CASE.positions[:5], *CASE.positional[1:], q_out=q_out, weights_out=weights_out)
    with pytest.raises(TypeError, match=r"index_q: expected dtype torch\.bfloat16"):
        quantize_out(CASE.positions, CASE.q.half(), *CASE.positional[2:], q_out=q_out, weights_out=weights_out)


def test_mxfp4_wants_a_scale_buffer():
    case = replace(CASE, fmt="mxfp4")
    buffers = cases.poisoned_outputs(case, 0)
    with pytest.raises(TypeError, match=r"q_scale_out: expected with use_fp4 an int32 \(T, H\) buffer.*got None"):
        quantize_out(*case.positional, q_out=buffers["q_packed"], weights_out=buffers["weights_out"])


def test_other_arguments_are_checked_too():
    with pytest.raises(
        TypeError, match=r"weights_out_dtype: expected torch\.float32 or torch\.bfloat16, got torch\.float16"
    ):
        quantize(*CASE.positional[:6], False, torch.float16)
    with pytest.raises(TypeError, match=r"spec: expected an IndexerQSpec, got 'neox'.*iq_ops\.IndexerQSpec\("):
        quantize(*CASE.positional, spec="neox")
    for wrong in (3, 0, False, ()):
        with pytest.raises(TypeError, match=r"backend: expected a backend's name or None, got .*\. Remedy"):
            quantize(*CASE.positional, backend=wrong)
    with pytest.raises(ValueError, match="rope_style: expected 'interleaved' or 'neox', got 'gptj'"):
        IndexerQSpec(rope_style="gptj")
    with pytest.raises(ValueError, match="rope_at: expected 'tail' or 'head', got 'front'"):
        IndexerQSpec(rope_at="front")
    with pytest.raises(TypeError, match="hadamard: expected True or False, got 1"):
        IndexerQSpec(hadamard=1)


@pytest.mark.parametrize("name", specs.MODELS)
def test_every_model_runs_in_its_formats(name):
    model = specs.MODELS[name]
    for fmt in model.formats:
        case = cases.random_case(
            6, fmt=fmt, tokens=3, num_heads=model.num_heads // 8, head_dim=model.head_dim, rope_dim=model.rope_dim,
            rope_style=model.spec.rope_style, rope_at=model.spec.rope_at, hadamard=model.spec.hadamard,
        )  # fmt: skip
        cases.assert_same(cases.raw_outputs(case, quantize(*case.positional, spec=model.spec)), cases.reference(case))
    with pytest.raises(AttributeError):
        model.spec.hadamard = True


def test_one_set_of_inputs_goes_through_both_formats_into_well_aligned_buffers():
    tokens, heads, head_dim = 4, 8, 128
    inputs = [
        cases.aligned_copy(tensor) for tensor in cases.random_case(3, tokens=tokens, num_heads=heads).positional[:4]
    ]
    weights_out = cases.aligned_copy(torch.empty(tokens, heads))
    q_out, q_packed, q_scale = (
        cases.aligned_copy(torch.empty(tokens, heads, size, dtype=torch.uint8)) for size in (head_dim, head_dim // 2, 4)
    )
    for _ in range(2):
        quantize_out(*inputs, 0.1, 0.2, q_out=q_out, weights_out=weights_out)
        quantize_out(*inputs, 0.1, 0.2, True, q_out=q_packed, weights_out=weights_out, q_scale_out=q_scale)
        assert torch.equal(q_out, quantize(*inputs, 0.1, 0.2)[0].view(torch.uint8))
        assert torch.equal(q_packed, quantize(*inputs, 0.1, 0.2, True)[0][0])


def test_an_error_of_the_out_variant_speaks_of_what_is_wrong_alone():
    case = cases.random_case(1, tokens=2, num_heads=8)
    q_out = torch.empty(2, 8, 128, dtype=torch.float8_e4m3fn)
    scales, packed = torch.empty(2, 8, dtype=torch.int32), torch.empty(2, 8, 64, dtype=torch.uint8)
    weights_out, halves = torch.empty(2, 8), torch.empty(2, 8, dtype=torch.bfloat16)
    inputs = case.positional[:6]
    with pytest.raises(TypeError, match=r"weights_out: expected dtype torch\.float32, got torch\.bfloat16"):
        quantize_out(*inputs, q_out=q_out, weights_out=halves)
    with pytest.raises(TypeError, match=r"weights_out: expected dtype torch\.float32, got torch\.bfloat16"):
        quantize_out(*inputs, True, q_out=packed, weights_out=halves, q_scale_out=scales)
    with pytest.raises(ValueError, match="q_scale_out: expected None without use_fp4"):
        quantize_out(*inputs, q_out=q_out, weights_out=weights_out, q_scale_out=scales)


def test_dir_lists_what_is_public_and_no_imports():
    assert set(iq_ops.__all__) | {"integrations"} <= set(dir(iq_ops))
    assert not {"Any", "TYPE_CHECKING", "annotations", "importlib"} & set(dir(iq_ops))
