"""The raw functions without a GPU: a recorder stands in for the compiled kernel, and says what was launched."""

from __future__ import annotations

import contextlib

import pytest
import torch

import iq_kernels_cute
from iq_kernels_cute import _abi, cache
from iq_kernels_cute.indexer_q import config, launch

RAW = {"indexer_q_fp8": iq_kernels_cute.indexer_q_fp8, "indexer_q_mxfp4": iq_kernels_cute.indexer_q_mxfp4}


class OnCuda:
    """A CPU tensor that says it is on cuda:0; all that the launch code asks of a tensor."""

    device = torch.device("cuda", 0)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str):
        return getattr(self.tensor, name)

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return 1 << 20 | self.tensor.storage_offset() * self.tensor.itemsize


def arguments(op: str, tokens: int = 3, num_heads: int = 8, **changes: object) -> dict[str, object]:
    """Keyword arguments of a call on `OnCuda` tensors; `changes` replaces some."""
    sizes = {"T": tokens, "H": num_heads, "D": 128, "R": 64, "P": 10, "D/2": 64, "D/32": 4}
    named: dict[str, object] = {}
    for spec in _abi.OPS[op].tensors:
        shape = [sizes[symbol] for symbol in spec.shape]
        named[spec.name] = OnCuda(torch.zeros(shape, dtype=getattr(torch, spec.dtypes[0])))
    return named | {"weights_softmax_scale": 0.25, "weights_head_scale": 3.0} | changes


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[config.Variant, tuple[object, ...]]]:
    """What was launched: (variant, arguments). No kernel is known at first."""
    made: list[tuple[config.Variant, tuple[object, ...]]] = []
    monkeypatch.setattr(cache, "get", lambda variant: lambda *values: made.append((variant, values)))
    monkeypatch.setattr(launch, "_schedules", {})
    monkeypatch.setattr(launch, "_loaded", {})
    monkeypatch.setattr(launch, "target_of", lambda index: "sm_90")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(launch, "_current_device", lambda: 0)
    return made


@pytest.mark.parametrize("op", RAW)
def test_arguments_reach_the_kernel_in_its_order(op, launches):
    call = arguments(op)
    for _ in range(2):
        assert RAW[op](**call) is None
    inputs = [call[spec.name] for spec in _abi.OPS[op].tensors if not spec.output]
    outputs = [call[spec.name] for spec in _abi.OPS[op].tensors if spec.output]
    assert [values for _, values in launches] == [(*inputs, 0.75, *outputs)] * 2


@pytest.mark.parametrize("op", RAW)
def test_a_launch_on_another_device_is_made_with_that_device_current(op, launches, monkeypatch):
    current = [1]  # the tensors are on device 0

    @contextlib.contextmanager
    def switched(device):
        before, current[0] = current[0], 0
        yield
        current[0] = before

    seen = []
    monkeypatch.setattr(torch.cuda, "device", switched)
    monkeypatch.setattr(launch, "_current_device", lambda: current[0])
    monkeypatch.setattr(cache, "get", lambda variant: lambda *values: seen.append(current[0]))
    for _ in range(2):  # the first call and the known one take different ways
        RAW[op](**arguments(op))
    assert seen == [0, 0]
    assert current == [1]


def request_of(op: str, call: dict[str, object]) -> _abi.Request:
    """The request that iq-ops would make of a call."""
    facts = {
        spec.name: _abi.TensorFacts(
            str(call[spec.name].dtype).removeprefix("torch."),
            tuple(call[spec.name].shape),
            call[spec.name].stride(),
            256,
        )
        for spec in _abi.OPS[op].tensors
    }
    return _abi.Request(op, "cuda", 0, "sm_90", facts, "interleaved", "tail", False)


@pytest.mark.parametrize("op", RAW)
def test_a_bound_launch_runs_the_kernel_of_its_request(op, launches, monkeypatch):
    call = arguments(op)
    assert launch.bound(request_of(op, call)) is None, "nothing has been launched yet"
    RAW[op](**call)
    run = launch.bound(request_of(op, call))
    tensors = [call[spec.name] for spec in _abi.OPS[op].tensors]
    run(*tensors[:4], 0.5, 3, *tensors[4:])
    assert launches[1] == (launches[0][0], (*tensors[:4], 1.5, *tensors[4:]))
    assert launch.bound(request_of(op, arguments(op, tokens=0))) is None


def test_a_bound_launch_explains_what_the_kernel_refuses(launches, monkeypatch):
    def refuse(*values):
        raise RuntimeError("what the compiled function says")

    monkeypatch.setattr(cache, "get", lambda variant: refuse)
    call = arguments("indexer_q_fp8")
    with pytest.raises(RuntimeError, match="what the compiled function says"):
        RAW["indexer_q_fp8"](**call)
    launch._loaded[
        config.choose(
            launch._workload(
                "indexer_q_fp8",
                dict(request_of("indexer_q_fp8", call).tensors),
                ("interleaved", "tail", False),
                "sm_90",
            ),
            3,
            dense=True,
        ),
        0,
    ] = refuse
    run = launch.bound(request_of("indexer_q_fp8", call))
    tensors = [call[spec.name] for spec in _abi.OPS["indexer_q_fp8"].tensors]
    with pytest.raises(RuntimeError, match="what the compiled function says"):
        run(*tensors[:4], 0.5, 3.0, *tensors[4:])
    tensors[0] = OnCuda(torch.zeros(5, dtype=torch.int32))
    with pytest.raises(ValueError, match="T = 5"):
        run(*tensors[:4], 0.5, 3.0, *tensors[4:])


@pytest.mark.parametrize("op", RAW)
def test_the_variant_is_the_one_that_config_chooses(op, launches, make_workload):
    workload = make_workload(op=op, num_heads=8, positions_dtype="int32", hadamard=True, rope_style="neox")
    options = {"hadamard": True, "rope_style": "neox"}
    for tokens in (1, 2, 7, 512, 1, 4096):
        RAW[op](**arguments(op, tokens, **options))
        assert launches[-1][0] == config.choose(workload, tokens, dense=True)
    strided = OnCuda(torch.zeros(3, 8, 256, dtype=torch.bfloat16)[..., :128])
    RAW[op](**arguments(op, q=strided, **options))
    assert launches[-1][0] == config.choose(workload, 3, dense=False)


def test_a_known_signature_is_not_checked_again(launches, monkeypatch):
    RAW["indexer_q_fp8"](**arguments("indexer_q_fp8"))
    monkeypatch.setattr(launch, "_check", None)
    RAW["indexer_q_fp8"](**arguments("indexer_q_fp8", tokens=2))
    assert len(launches) == 2


@pytest.mark.parametrize("op", RAW)
def test_no_tokens_launch_nothing(op, launches):
    for _ in range(2):
        RAW[op](**arguments(op, tokens=0))
    assert launches == []
    with pytest.raises(TypeError, match="positional"):
        RAW[op](*arguments(op).values())


def test_no_tokens_are_checked_all_the_same(launches):
    RAW["indexer_q_fp8"](**arguments("indexer_q_fp8"))
    positions = OnCuda(torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match="positions"):
        RAW["indexer_q_fp8"](**arguments("indexer_q_fp8", tokens=0, positions=positions))


def float8(shape: tuple[int, ...]) -> OnCuda:
    return OnCuda(torch.zeros(shape, dtype=torch.uint8).view(torch.float8_e4m3fn))


WRONG = {
    "float8 output": (TypeError, "view\\(torch.uint8\\)", lambda: {"q_fp8": float8((3, 8, 128))}),
    "dtype of q": (TypeError, "q: ", lambda: {"q": OnCuda(torch.zeros(3, 8, 128))}),
    "no tensor": (TypeError, "weights: ", lambda: {"weights": [1.0]}),
    "rank": (ValueError, "q: ", lambda: {"q": OnCuda(torch.zeros(8, 128, dtype=torch.bfloat16))}),
    "tokens": (ValueError, "q_fp8", lambda: {"q_fp8": OnCuda(torch.zeros(4, 8, 128, dtype=torch.uint8))}),
    "rope_dim": (ValueError, "multiple of 16", lambda: {"cos_sin_cache": OnCuda(torch.zeros(10, 24))}),
    "output strides": (
        ValueError,
        "contiguous",
        lambda: {"q_fp8": OnCuda(torch.zeros(3, 8, 256, dtype=torch.uint8)[..., :128])},
    ),
    "alignment": (
        ValueError,
        "16 bytes",
        lambda: {"q": OnCuda(torch.zeros(3 * 8 * 128 + 4, dtype=torch.bfloat16)[4:].view(3, 8, 128))},
    ),
    "row stride": (
        ValueError,
        "multiple of 16 bytes",
        lambda: {"q": OnCuda(torch.zeros(3, 8, 132, dtype=torch.bfloat16)[..., :128])},
    ),
    "device": (ValueError, "device", lambda: {"weights": torch.zeros(3, 8, dtype=torch.bfloat16)}),
    "sign of weights": (
        ValueError,
        r"weights: expected .* negated. Remedy: pass weights.resolve_neg\(\)",
        lambda: {"weights": OnCuda(torch._neg_view(torch.zeros(3, 8, dtype=torch.bfloat16)))},
    ),
    "sign of q": (
        ValueError,
        r"q: expected .* negated. Remedy: pass q.resolve_neg\(\)",
        lambda: {"q": OnCuda(torch._neg_view(torch.zeros(3, 8, 128, dtype=torch.bfloat16)))},
    ),
    "sign of the cache": (
        ValueError,
        r"cos_sin_cache: expected .* negated. Remedy: pass cos_sin_cache.resolve_neg\(\)",
        lambda: {"cos_sin_cache": OnCuda(torch._neg_view(torch.zeros(10, 64)))},
    ),
    "sign of an output": (
        ValueError,
        "weights_out: expected .* negated. Remedy: pass a buffer",
        lambda: {"weights_out": OnCuda(torch._neg_view(torch.zeros(3, 8)))},
    ),
    "rope_style": (ValueError, "rope_style", lambda: {"rope_style": "gptj"}),
    "rope_at": (ValueError, "rope_at", lambda: {"rope_at": "front"}),
    "hadamard": (TypeError, "hadamard", lambda: {"hadamard": 1.5}),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("known", [False, True], ids=["first call", "after a good call"])
def test_errors_name_argument_and_remedy(case, known, launches, monkeypatch):
    error, words, changes = WRONG[case]
    if known:  # the compiled function refuses then, with words of its own

        def refuse(*values: object) -> None:
            raise ValueError("Mismatched Tensor on argument #1")

        RAW["indexer_q_fp8"](**arguments("indexer_q_fp8"))
        for schedule in launch._schedules.values():
            for step in schedule:
                step[1] = step[1] and refuse
    with pytest.raises(error, match=words) as caught:
        RAW["indexer_q_fp8"](**arguments("indexer_q_fp8", **changes()))
    assert "Remedy: " in str(caught.value)


def test_tensors_must_be_on_a_gpu(launches):
    on_cpu = {name: getattr(value, "tensor", value) for name, value in arguments("indexer_q_fp8").items()}
    with pytest.raises(ValueError, match="CUDA device"):
        RAW["indexer_q_fp8"](**on_cpu)
    assert launches == []


def test_an_error_that_is_not_the_callers_passes_through(launches):
    RAW["indexer_q_fp8"](**arguments("indexer_q_fp8"))

    def fail(*values: object) -> None:
        raise RuntimeError("an illegal memory access")

    for schedule in launch._schedules.values():
        for step in schedule:
            step[1] = step[1] and fail
    with pytest.raises(RuntimeError, match="illegal memory access"):
        RAW["indexer_q_fp8"](**arguments("indexer_q_fp8"))


def test_a_cold_call_under_capture_names_warmup(launches, monkeypatch, make_workload):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"iq_ops\.warmup"):
            RAW["indexer_q_fp8"](**arguments("indexer_q_fp8"))
    assert launches == []
    workload = make_workload(num_heads=8, positions_dtype="int32")
    for variant in config.variants(workload):
        launch._loaded[variant, 0] = cache.get(variant)
    RAW["indexer_q_fp8"](**arguments("indexer_q_fp8"))
    RAW["indexer_q_fp8"](**arguments("indexer_q_fp8", tokens=5000))
    assert len(launches) == 2
