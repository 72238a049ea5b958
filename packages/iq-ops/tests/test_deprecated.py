"""Old names: the same bits, one warning at the caller's line, clear errors, and an end that is not forgotten."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

import cases
import iq_ops
from fake_providers import planting  # noqa: F401 - an autouse fixture
from iq_ops import _deprecated

CASES = {fmt: cases.random_case(1, fmt=fmt, tokens=6, num_heads=4) for fmt in cases.FORMATS}
SHIMS = {fmt: f"fused_indexer_q_rope_quant_{fmt}_cutedsl" for fmt in cases.FORMATS}
KERNELS = {fmt: f"_INDEXER_Q_{fmt.upper()}_KERNEL" for fmt in cases.FORMATS}


def version(text):
    return tuple(int(part) for part in text.split(".")[:3])


@pytest.mark.parametrize("row", _deprecated.TABLE.values(), ids=lambda row: row.name)
def test_a_name_is_gone_once_its_version_comes(row):
    assert version(row.since) <= version(iq_ops.__version__) < version(row.removed_in), (
        f"remove {row.name}, which was to go in {row.removed_in}, from _deprecated.py and iq_ops/__init__.py"
    )


def test_every_old_name_is_reached_from_the_package():
    assert all(getattr(iq_ops, name) is getattr(_deprecated, name) for name in _deprecated.TABLE)
    with pytest.raises(AttributeError, match="has no attribute 'never_there'"):
        _ = iq_ops.never_there


def byte_views(outputs):
    """The views that old code passed: float8 for FP8, int32 for the scales."""
    if "q_fp8" in outputs:
        return {**outputs, "q_fp8": outputs["q_fp8"].view(torch.float8_e4m3fn)}
    return {**outputs, "q_scale": outputs["q_scale"].view(torch.int32).squeeze(-1)}


def arguments_of(fmt, how, outputs):
    """The old name, and its arguments as old code passed them."""
    case = CASES[fmt]
    if how == "kernel":
        return KERNELS[fmt], (), {**case.inputs, **outputs}
    values = (*case.positional[:6], *outputs.values())
    if how == "positions":
        return SHIMS[fmt], values, {}
    names = list(inspect.signature(getattr(_deprecated, SHIMS[fmt])).parameters)
    return SHIMS[fmt], (), dict(zip(names, values, strict=True))


def call_by(name, positional, keywords):
    getattr(iq_ops, name)(*positional, **keywords)


CALLERS_LINE = inspect.getsourcelines(call_by)[1] + 1


def old_call(fmt, how, outputs):
    call_by(*arguments_of(fmt, how, outputs))


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("how", ["positions", "keywords", "kernel"])
@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("compiled", [False, True])
def test_the_same_bits_and_one_warning_at_the_callers_line(fmt, how, views, compiled):
    buffers = cases.poisoned_outputs(CASES[fmt], sentinel_rows=0)
    given = byte_views(buffers) if views else buffers
    arguments = arguments_of(fmt, how, given)
    call = call_by
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call_by, fullgraph=True, backend="aot_eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    cases.assert_same(buffers, cases.reference(CASES[fmt]))
    (warning,) = [w for w in caught if w.category is DeprecationWarning and "iq_ops" in str(w.message)]
    name = KERNELS[fmt] if how == "kernel" else SHIMS[fmt]
    row = _deprecated.TABLE[name]
    for part in (name, row.replacement, row.since, row.removed_in):
        assert part in str(warning.message)
    assert (warning.filename, warning.lineno) == (__file__, CALLERS_LINE)


def test_a_call_site_warns_once_under_the_default_filter():
    buffers = cases.poisoned_outputs(CASES["fp8"], 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            old_call("fp8", "positions", buffers)
    assert len(caught) == 1


def test_larger_buffers_are_written_in_their_first_rows_alone():
    buffers = cases.poisoned_outputs(CASES["mxfp4"], sentinel_rows=2)
    with pytest.deprecated_call():
        old_call("mxfp4", "positions", byte_views(buffers))
    cases.assert_same({name: buffer[:6] for name, buffer in buffers.items()}, cases.reference(CASES["mxfp4"]))
    assert all(bool((buffer[6:].view(torch.uint8) == cases.POISON).all()) for buffer in buffers.values())


def wrong(name, value):
    return lambda buffers: {**buffers, name: value(buffers[name])}


WRONG = {
    "dtype": (wrong("q_fp8", lambda b: b.view(torch.int8)), TypeError, "index_q_fp8: expected dtype torch.uint8, got"),
    "weights": (wrong("weights_out", lambda b: b.half()), TypeError, "index_weights_out: expected dtype torch.float32"),
    "shape": (wrong("q_fp8", lambda b: b[:, :3]), ValueError, "index_q_fp8: expected size H = 4"),
    "rows": (wrong("q_fp8", lambda b: b[:5]), ValueError, r"index_q_fp8: expected size T = 6 .* shape \(5, 4, 128\)"),
    "contiguity": (
        wrong("q_fp8", lambda b: b.repeat(1, 1, 2)[..., ::2]), ValueError, "index_q_fp8: expected a contiguous tensor",
    ),
    "none": (wrong("q_fp8", lambda b: None), TypeError, "index_q_fp8: expected a torch.Tensor, got NoneType"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_buffer_is_a_clear_error_and_nothing_is_written(what):
    change, error, message = WRONG[what]
    buffers = cases.poisoned_outputs(CASES["fp8"], 0)
    with pytest.deprecated_call(), pytest.raises(error, match=message) as caught:
        old_call("fp8", "positions", change(buffers))
    assert "Remedy: " in str(caught.value)
    assert all(bool((buffer.view(torch.uint8) == cases.POISON).all()) for buffer in buffers.values())
