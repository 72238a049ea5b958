"""Plain eager calls pass PyTorch's dispatcher by; whatever could want to see the op still does, with the same bits."""

from __future__ import annotations

import runpy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._dynamo.testing import EagerAndRecordGraphs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import cases
import iq_ops
from iq_ops import _direct, indexer

quantize, quantize_out = iq_ops.fused_indexer_q_rope_quant, iq_ops.fused_indexer_q_rope_quant_out
on_every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
in_both_formats = pytest.mark.parametrize("fmt", cases.FORMATS)
INPUTS = ("positions", "q", "cos_sin_cache", "weights")


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """Count the calls of each implementation that do not come from the dispatcher."""
    calls = Counter()

    def counting(name):
        run = getattr(indexer, name)

        def counted(*arguments):
            calls[name] += 1
            return run(*arguments)

        return counted

    for name in ("_run_eagerly", "_run_fp8", "_run_mxfp4"):
        monkeypatch.setattr(indexer, name, counting(name))
    return calls


def make(fmt="fp8", device="cpu", **changes):
    """A case with float32 weights that has no NaN, so that a changed sign changes the bytes."""
    case = cases.random_case(1, fmt=fmt, device=device, weights_dtype=torch.float32, edges=False)
    return replace(case, **changes)


def call_out(case, call=quantize_out):
    buffers = cases.poisoned_outputs(case, 0)
    names = {"q_fp8": "q_out", "q_packed": "q_out", "q_scale": "q_scale_out"}
    call(*case.positional, **{names.get(name, name): buffer for name, buffer in buffers.items()})
    return buffers


@on_every_device
@in_both_formats
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_plain_calls_go_straight_to_the_implementation(device, fmt, mode, direct):
    with mode():
        case = make(fmt, device)
        cases.check_result(case, quantize(*case.positional))
        cases.assert_same(call_out(case), cases.reference(case))
    assert direct == {"_run_eagerly": 1, f"_run_{fmt}": 1}


@in_both_formats
def test_a_dispatch_mode_sees_the_op(fmt, direct):
    seen = Counter()

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen[func] += 1
            return func(*args, **(kwargs or {}))

    case = make(fmt)
    with Recording():
        result = quantize(*case.positional)
        buffers = call_out(case)
    cases.check_result(case, result)
    cases.assert_same(buffers, cases.reference(case))
    assert seen[getattr(torch.ops.iq_ops, case.op).default] == 2
    assert not direct


@in_both_formats
def test_a_function_mode_sees_the_op(fmt, direct):
    seen = Counter()

    class Recording(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen[func] += 1
            return func(*args, **(kwargs or {}))

    case = make(fmt)
    with Recording():
        result = quantize(*case.positional)
    cases.check_result(case, result)
    assert seen[getattr(torch.ops.iq_ops, case.op).default] == 1
    assert not direct


@on_every_device
@in_both_formats
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # of some PyTorch, on a GPU
def test_a_profiler_shows_the_op(device, fmt, direct):
    case = make(fmt, device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = quantize(*case.positional)
    cases.check_result(case, result)
    assert [event.count for event in profile.key_averages() if event.key == f"iq_ops::{case.op}"] == [1]
    assert not direct
    cases.check_result(case, quantize(*case.positional))
    assert direct


@in_both_formats
def test_dynamo_puts_the_op_into_one_graph(fmt, direct):
    torch._dynamo.reset()
    case, recorded = make(fmt), EagerAndRecordGraphs()
    cases.check_result(case, torch.compile(quantize, fullgraph=True, backend=recorded)(*case.positional))
    buffers = call_out(case, torch.compile(quantize_out, fullgraph=True, backend=recorded))
    cases.assert_same(buffers, cases.reference(case))
    assert len(recorded.graphs) == 2
    for graph in recorded.graphs:
        assert [node for node in graph.graph.nodes if node.target is getattr(torch.ops.iq_ops, case.op).default]
    assert not direct
    torch._dynamo.reset()


@in_both_formats
@pytest.mark.parametrize("tracing", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_records_the_op(fmt, tracing, pre_dispatch, direct):
    case = make(fmt)
    graph = make_fx(
        lambda *tensors: quantize(*tensors, *case.positional[4:]), tracing_mode=tracing, pre_dispatch=pre_dispatch
    )(*case.positional[:4])
    assert [node for node in graph.graph.nodes if node.target is getattr(torch.ops.iq_ops, case.op).default]
    assert not direct
    other = cases.random_case(2, fmt=fmt, weights_dtype=torch.float32, edges=False)
    cases.check_result(other, graph(*other.positional[:4]))


@in_both_formats
def test_export_without_dynamo_records_the_op(fmt, direct):
    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return quantize(*tensors, *case.positional[4:])

    case = make(fmt)
    exported = torch.export.export(Module(), case.positional[:4], strict=False)
    assert not direct
    cases.check_result(case, exported.module()(*case.positional[:4]))


@pytest.mark.filterwarnings("default")  # torch.jit says of itself that it is old
def test_a_jit_trace_records_the_op(direct):
    def layer(q):
        q_out, weights_out = torch.empty_like(q, dtype=torch.uint8), torch.empty_like(q[..., 0], dtype=torch.float32)
        quantize_out(case.positions, q, *case.positional[2:], q_out=q_out, weights_out=weights_out)
        return q_out.clone(), weights_out.clone()

    case = make()
    traced = torch.jit.trace(layer, case.q, check_trace=False)  # the check would run it once more, untraced
    assert "iq_ops::indexer_q_fp8" in str(traced.graph)
    assert not direct
    other = replace(case, q=-case.q)
    cases.check_result(other, traced(other.q))


@in_both_formats
def test_fake_tensors_are_never_read(fmt, direct):
    case = make(fmt)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in case.positional[:4]]
        inside = quantize(*fakes, *case.positional[4:])
    outside = quantize(*fakes, *case.positional[4:])
    assert inside[1].shape == outside[1].shape == case.weights.shape
    assert not direct


def through_the_op(monkeypatch, call):
    """What a call comes to when it goes through the op: its bytes, or its error."""
    with monkeypatch.context() as patch:
        patch.setattr(indexer, "_goes_unseen", lambda *arguments: False)
        return outcome(call)


def outcome(call):
    try:
        result = call()
    except Exception as error:
        return type(error), str(error)
    quantized, weights_out = result
    parts = [*(quantized if isinstance(quantized, tuple) else (quantized,)), weights_out]
    return [
        (part.shape, part.dtype, None if part.is_meta else part.contiguous().view(torch.uint8).tolist())
        for part in parts
    ]


@pytest.mark.parametrize("name", INPUTS)
@in_both_formats
def test_a_view_with_its_negative_bit_set_is_read_with_its_sign(name, fmt, direct):
    case = make(fmt)
    in_memory = -getattr(case, name)
    cases.check_result(case, quantize(*replace(case, **{name: torch._neg_view(in_memory)}).positional))
    assert not direct
    wrong = cases.raw_outputs(case, quantize(*replace(case, **{name: in_memory}).positional))
    assert any(not torch.equal(wrong[key], value) for key, value in cases.reference(case).items())
    assert direct == {"_run_eagerly": 1}


@pytest.mark.parametrize("name", ["positions", "weights"])  # of q and the cache no strides of zero are taken
@in_both_formats
def test_a_zero_tensor_gets_memory_from_the_dispatcher(name, fmt):
    case = make(fmt)
    given = getattr(case, name)
    without_memory = torch._efficientzerotensor(given.shape, dtype=given.dtype)
    assert without_memory.data_ptr() == 0
    for _ in range(2):
        result = quantize(*replace(case, **{name: without_memory}).positional)
        cases.check_result(replace(case, **{name: torch.zeros_like(given)}), result)


def test_the_imaginary_part_of_a_conjugate_is_read_with_its_sign(direct):
    case = make()
    weights = torch.complex(torch.zeros_like(case.weights), -case.weights).conj().imag
    assert weights.is_neg()
    cases.check_result(case, quantize(*replace(case, weights=weights).positional))
    assert not direct


def test_a_negative_bit_on_a_buffer_is_refused_as_the_op_refuses_it(monkeypatch, direct):
    case = make()
    q_out, in_memory = torch.empty(case.q.shape, dtype=torch.uint8), torch.full(case.weights.shape, 7.0)

    def call():
        quantize_out(*case.positional, q_out=q_out, weights_out=torch._neg_view(in_memory))

    quantize(*case.positional)  # a signature that is known by then
    direct.clear()
    found = outcome(call)
    assert found[0] is RuntimeError
    assert found == through_the_op(monkeypatch, call)
    assert bool((in_memory == 7.0).all())
    assert not direct


class Plain(torch.Tensor):
    """A subclass without handlers of its own."""


def transformed(transform):
    """A call whose weights come through a functorch transform."""

    def call(case):
        positions, q, cache, weights, *rest = case.positional
        inside = []

        def function(wrapped):
            inside.append(quantize(positions, q, cache, wrapped, *rest))
            return inside[0][1].sum()

        transform(function)(weights)
        return inside[0]

    return call


ODD = {
    "Parameter": lambda case: quantize(*replace(case, weights=torch.nn.Parameter(case.weights, False)).positional),
    "Parameter with grad": lambda case: quantize(*replace(case, q=torch.nn.Parameter(case.q)).positional),
    "subclass": lambda case: quantize(*replace(case, q=case.q.as_subclass(Plain)).positional),
    "meta": lambda case: quantize(*case.to("meta").positional),
    "vmap": transformed(torch.func.vmap),
    "grad": transformed(torch.func.grad),
    "functionalize": transformed(torch.func.functionalize),
    **{
        f"{kind.__name__} {name}": lambda case, kind=kind, name=name: quantize(
            *replace(case, **{name: kind(1)}).positional
        )
        for kind in (int, bool, str, complex, np.float32, torch.tensor)
        for name in ("softmax_scale", "head_scale")
    },
}


@pytest.mark.parametrize("name", ODD)
@in_both_formats
def test_what_is_not_plain_comes_to_what_the_op_makes_of_it(name, fmt, monkeypatch, direct):
    case = make(fmt)
    quantize(*case.positional)  # a signature that is known by then
    direct.clear()
    found = outcome(lambda: ODD[name](case))
    assert not direct
    assert found == through_the_op(monkeypatch, lambda: ODD[name](case))


@pytest.mark.parametrize("name", INPUTS)
def test_a_tensor_on_the_meta_device_among_others_is_named_though_the_signature_is_known(name):
    case = make()
    quantize(*case.positional)
    with pytest.raises(ValueError, match=r"expected device (cpu|meta), where positions is, got device (meta|cpu)"):
        quantize(*replace(case, **{name: getattr(case, name).to("meta")}).positional)


@in_both_formats
def test_version_counters_move_as_they_do_through_the_op(fmt, monkeypatch, direct):
    case = make(fmt)
    versions = [buffer._version for buffer in call_out(case).values()]
    assert direct
    monkeypatch.setattr(indexer, "_goes_unseen", lambda *arguments: False)
    assert versions == [buffer._version for buffer in call_out(case).values()]


@pytest.mark.parametrize("module", [torch._C, torch.autograd.profiler])
def test_a_pytorch_that_lacks_a_private_name_has_every_call_go_through_its_op(module, monkeypatch):
    inputs = make().positional[:6]
    assert runpy.run_path(_direct.__file__)["goes_unseen"](*inputs)
    name = "_len_torch_dispatch_stack" if module is torch._C else "_is_profiler_enabled"
    monkeypatch.delattr(module, name)
    assert not runpy.run_path(_direct.__file__)["goes_unseen"](*inputs)
