"""The quantization has no derivative: whoever asks for one, torch.func and forward-mode AD too, gets a clear error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import cases
import iq_ops

quantize, quantize_out = iq_ops.fused_indexer_q_rope_quant, iq_ops.fused_indexer_q_rope_quant_out
# PyTorch says it of itself where it first loads what forward-mode AD takes
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
in_both_formats = pytest.mark.parametrize("fmt", cases.FORMATS)
DIFFERENTIABLE = ("q", "cos_sin_cache", "weights")


def make(fmt="fp8"):
    return cases.random_case(1, fmt=fmt, weights_dtype=torch.float32, edges=False)


def in_dual_level(function):
    def dual(x):
        with forward_ad.dual_level():
            return function(forward_ad.make_dual(x, torch.ones_like(x)))

    return dual


REVERSE = {
    "grad": torch.func.grad,
    "vjp": lambda function: lambda x: torch.func.vjp(function, x),
    "jacrev": torch.func.jacrev,
    "grad of grad": lambda function: torch.func.grad(lambda x: torch.func.grad(function)(x).sum()),
    "grad, traced": lambda function: make_fx(torch.func.grad(function)),
}
FORWARD = {
    "jvp": lambda function: lambda x: torch.func.jvp(function, (x,), (torch.ones_like(x),)),
    "jacfwd": torch.func.jacfwd,
    "jvp under no_grad": lambda function: torch.no_grad()(FORWARD["jvp"](function)),
    "dual level": in_dual_level,
    "dual level under no_grad": lambda function: torch.no_grad()(in_dual_level(function)),
}
MESSAGES = {
    **dict.fromkeys(REVERSE, "requires_grad=True. Remedy: the quantization has none: pass {0}.detach(), or call it "),
    **dict.fromkeys(FORWARD, "one with a tangent of forward-mode AD. Remedy: the quantization has none: pass {0}.det"),
}


def message_of(call):
    with pytest.raises(ValueError) as caught:
        call()
    assert type(caught.value) is ValueError
    return str(caught.value)


@pytest.mark.parametrize("transform", [*REVERSE, *FORWARD])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
@in_both_formats
def test_a_derivative_is_refused_by_the_arguments_public_name(transform, name, fmt):
    case = make(fmt)
    quantize(*case.positional)  # a signature that is known by then

    def function(x):
        return quantize(*replace(case, **{name: x}).positional)[1].sum()

    message = message_of(lambda: {**REVERSE, **FORWARD}[transform](function)(getattr(case, name)))
    public = f"index_{name}" if name != "cos_sin_cache" else "index_q_cos_sin_cache"
    assert message.startswith(f"{public}: expected a tensor that needs no gradient, got ")
    assert MESSAGES[transform].format(public) in message


@pytest.mark.parametrize("transform", [*REVERSE, *FORWARD])
@in_both_formats
def test_what_is_not_differentiated_by_is_quantized_as_ever(transform, fmt):
    case, results = make(fmt), []

    def function(x):
        result = quantize(*case.positional)
        results.append(result)
        return (x * x).sum() + x.detach().sum() * 0

    {**REVERSE, **FORWARD}[transform](function)(case.weights)
    if "traced" not in transform:
        cases.check_result(case, results[0])
    assert len(results) == 1


@pytest.mark.parametrize("transform", ["grad", "jvp", "dual level"])
@in_both_formats
def test_a_detached_tensor_is_taken_as_the_remedy_says(transform, fmt):
    case, results = make(fmt), []

    def function(x):
        weights_out = quantize(*replace(case, weights=x.detach()).positional)[1]
        results.append(weights_out)
        return (weights_out * x).sum()

    {**REVERSE, **FORWARD}[transform](function)(case.weights)
    assert results


def test_grad_inside_no_grad_is_taken_as_the_remedy_says():
    case = make()

    def function(x):
        with torch.no_grad():
            constant = quantize(*replace(case, weights=x).positional)[1]
        return (constant * x).sum()

    found = torch.func.grad(function)(case.weights)
    assert torch.equal(found, cases.reference(case)["weights_out"])


@pytest.mark.parametrize("transform", ["grad", "jvp", "dual level"])
@pytest.mark.parametrize("name", ["weights", "weights_out"])
@in_both_formats
def test_the_variant_with_buffers_refuses_it_too_and_writes_nothing(transform, name, fmt):
    case = make(fmt)
    buffers = cases.poisoned_outputs(case, 0)
    public = {"q_fp8": "q_out", "q_packed": "q_out", "q_scale": "q_scale_out"}

    def function(x):
        changed = replace(case, weights=x) if name == "weights" else case
        given = {**buffers, **({name: x} if name == "weights_out" else {})}
        quantize_out(*changed.positional, **{public.get(key, key): buffer for key, buffer in given.items()})
        return x.sum()

    given = case.weights if name == "weights" else torch.full_like(case.weights, 7.0)
    message = message_of(lambda: {**REVERSE, **FORWARD}[transform](function)(given))
    assert message.startswith("index_weights: " if name == "weights" else "weights_out: ")
    for buffer in buffers.values():
        assert bool((buffer.view(torch.uint8) == cases.POISON).all())
    assert name == "weights" or bool((given == 7.0).all())


@pytest.mark.parametrize("transform", ["grad", "jvp", "dual level"])
def test_old_names_refuse_it_too(transform):
    case = make()

    def function(x):
        outputs = torch.empty(case.q.shape, dtype=torch.uint8), torch.empty(case.weights.shape)
        with pytest.warns(DeprecationWarning, match="fused_indexer_q_rope_quant_fp8_cutedsl"):
            iq_ops.fused_indexer_q_rope_quant_fp8_cutedsl(
                *case.positional[:3], x, case.softmax_scale, case.head_scale, *outputs
            )

    message = message_of(lambda: {**REVERSE, **FORWARD}[transform](function)(case.weights))
    assert message.startswith("index_weights: expected a tensor that needs no gradient, got ")


def test_inference_mode_inside_a_dual_level_has_no_derivative_to_refuse():
    case = make()
    with forward_ad.dual_level(), torch.inference_mode():
        result = quantize(*case.positional)
    cases.check_result(case, result)
