"""What is remembered of a signature: who runs it, bound where the provider binds, and no more than so many."""

from __future__ import annotations

import pytest

import cases
import iq_ops
from fake_providers import planting, preferring, providing  # noqa: F401 - fixtures
from iq_ops import _abi, _library, reference


def test_what_was_chosen_once_is_not_judged_again(plant, fake_provider, prefer_kernels):
    provider = fake_provider("triton")
    judged = []
    provider.why_not = lambda request: judged.append(request)
    plant(provider)
    case = cases.random_case(1, tokens=4)
    outputs = {name: buffer[:4] for name, buffer in cases.poisoned_outputs(case).items()}
    for _ in range(3):
        iq_ops.fused_indexer_q_rope_quant_out(
            *case.positional, q_out=outputs["q_fp8"], weights_out=outputs["weights_out"]
        )
    assert len(judged) == 1
    assert len(provider.calls) == 3


def repeat_into_one_set_of_buffers(case, times=3):
    outputs = {name: buffer[: case.q.shape[0]] for name, buffer in cases.poisoned_outputs(case).items()}
    for _ in range(times):
        iq_ops.fused_indexer_q_rope_quant_out(
            *case.positional,
            q_out=outputs["q_fp8" if case.fmt == "fp8" else "q_packed"],
            weights_out=outputs["weights_out"],
            q_scale_out=outputs.get("q_scale"),
        )
    cases.assert_same(outputs, cases.reference(case))


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_a_provider_may_bind_a_signature_after_its_first_call(fmt, plant, fake_provider, prefer_kernels):
    provider = fake_provider("triton")
    requests, arguments = [], []
    case = cases.random_case(1, fmt=fmt, tokens=4)

    def bind(request):
        requests.append(request)

        def run(*values):
            arguments.append(values)
            names = [spec.name for spec in _abi.OPS[case.op].tensors]
            named = dict(zip([*names[:4], *_abi.SCALARS, *names[4:]], values, strict=True))
            getattr(reference, case.op)(**named, **case.options)

        return run

    provider.bind = bind
    plant(provider)
    repeat_into_one_set_of_buffers(case)
    assert [request.op for request in requests] == [case.op]
    assert (len(provider.calls), len(arguments)) == (1, 2)


def test_a_bind_that_raises_or_declines_leaves_the_raw_function(plant, fake_provider, prefer_kernels):
    provider = fake_provider("triton")
    provider.bind = lambda request: None
    plant(provider)
    repeat_into_one_set_of_buffers(cases.random_case(1, tokens=4))
    assert len(provider.calls) == 3
    provider.bind = lambda request: 1 // 0
    with pytest.warns(RuntimeWarning, match="'triton' is called the long way: its bind raised ZeroDivisionError"):
        repeat_into_one_set_of_buffers(cases.random_case(1, tokens=5))
    assert len(provider.calls) == 6


def test_signatures_stay_bounded(monkeypatch):
    monkeypatch.setattr(_library, "MAX_SIGNATURES", 4)
    for tokens in range(1, 12):
        repeat_into_one_set_of_buffers(
            cases.random_case(1, tokens=tokens, num_heads=1, head_dim=32, rope_dim=16), times=1
        )
        assert len(_library.signatures) <= 4
