"""Contract 1 on every backend here: the reference, Triton under its interpreter, and on a GPU every kernel package."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cases
import encoders
from interpreter import interpreting  # noqa: F401 - a fixture
from iq_ops import _abi, reference

ROWS = 1 << 16
KERNELS = sorted(entry.name for entry in importlib.metadata.entry_points(group=_abi.ENTRY_POINT_GROUP))


def kernel(name: str, op: str):
    """A kernel package's raw function; a package that is there and broken is a failure."""
    (entry,) = (e for e in importlib.metadata.entry_points(group=_abi.ENTRY_POINT_GROUP) if e.name == name)
    return entry.load().load(op)


def raw_of(backend: str, op: str):
    return getattr(reference, op) if backend == "reference" else kernel(backend, op)


def on_gpu(name: str):
    return pytest.param(name, marks=pytest.mark.gpu)


@pytest.mark.parametrize("name", cases.golden_names())
@pytest.mark.parametrize("backend", ["reference", *map(on_gpu, KERNELS)])
def test_golden_vectors(backend, name):
    device = "cpu" if backend == "reference" else "cuda"
    case = cases.golden(name, device)
    cases.assert_same(cases.run(raw_of(backend, case.op), case), case.expected, backend)


@pytest.mark.gpu
@pytest.mark.parametrize("name", cases.golden_names())
def test_golden_vectors_by_the_reference_on_the_gpu(name):
    case = cases.golden(name, "cuda")
    cases.assert_same(cases.reference(case), case.expected)


@pytest.mark.parametrize("name", cases.golden_names())
def test_golden_vectors_under_the_triton_interpreter(interpreter, name):
    interpreter.check("golden", name=name)


def exhaustive_rows(amax: float | None) -> torch.Tensor:
    """Rows (65536, 1, 32) of bf16 that put every bf16 value once in dim 16, outside the 16 rotary dims at the head.

    With an amax it stands beside the value, which so is an element; without, smaller ones do, and it is the amax.
    """
    value = (torch.arange(ROWS, dtype=torch.int32) << 16).view(torch.float32)
    q = torch.zeros(ROWS, 1, 32, dtype=torch.bfloat16)
    if amax is None:
        fractions = torch.tensor(
            [1, 0.5, -0.3, 0.1, 0.9, -0.7, 0.04, 0.011, -0.25, 0.75, 0.6, -0.002, 0.45, 0.33, -0.8, 0]
        )
        q[:, 0, 16:] = value[:, None] * fractions
        q[:, 0, 16] = value
    else:
        q[:, 0, 16], q[:, 0, 17], q[:, 0, 31] = value, -value, amax
    return q


def exhaustive_case(fmt: str, amax: float | None, device: str = "cpu") -> cases.Case:
    cache = torch.cat((torch.ones(1, 8), torch.zeros(1, 8)), dim=1)
    case = cases.Case(
        name=f"exhaustive {fmt} {amax}", fmt=fmt, positions=torch.zeros(ROWS, dtype=torch.int64),
        q=exhaustive_rows(amax), cos_sin_cache=cache, weights=torch.ones(ROWS, 1), softmax_scale=1.0, head_scale=1.0,
        options={"rope_style": "interleaved", "rope_at": "head", "hadamard": False},
    )  # fmt: skip
    return case.to(device)


def exhaustive_expectation(fmt: str, q: torch.Tensor) -> dict[str, np.ndarray]:
    """What the independent encoder makes of the rows. The weights are 1, so weights_out is the FP8 scale itself."""
    values = q[:, 0].to(torch.float64).cpu().numpy()
    finite = np.isfinite(values).all(-1)
    codes, exponents = np.zeros(values.shape, np.uint8), np.zeros(ROWS, np.int64)
    codes[finite], exponents[finite] = encoders.quantized(fmt, values[finite])
    if fmt == "fp8":
        scale = np.ldexp(np.float32(1), exponents - 127)
        return {
            "q_fp8": np.where(finite[:, None], codes, 0x7F).astype(np.uint8),
            "weights_out": np.where(finite, scale, np.nan).astype(np.float32),
        }
    return {
        "q_packed": codes[:, 0::2] | codes[:, 1::2] << 4,
        "q_scale": np.where(finite, exponents, 0xFF).astype(np.uint8)[:, None],
        "weights_out": np.ones(ROWS, np.float32),
    }


@pytest.mark.parametrize("amax", [None, 1.0, 3.0e38, 448.0, 2.0**-120, 1.0e-30])
@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("backend", ["reference", *map(on_gpu, KERNELS)])
def test_every_bf16_value_as_amax_and_as_element(backend, fmt, amax):
    case = exhaustive_case(fmt, amax, "cpu" if backend == "reference" else "cuda")
    actual = cases.run(raw_of(backend, case.op), case)
    expected = {name: torch.from_numpy(value) for name, value in exhaustive_expectation(fmt, case.q).items()}
    cases.assert_same(
        {name: value.flatten(1).cpu() for name, value in actual.items()},
        {name: value.view(ROWS, -1) for name, value in expected.items()},
        (fmt, amax),
    )


def test_the_value_tables_are_those_of_the_formats():
    e4m3 = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64).numpy()
    assert np.array_equal(encoders.E4M3, e4m3)
    assert encoders.E4M3[-1] == 448
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0])
    assert encoders.nearest_codes(encoders.E2M1, ties).tolist() == [0, 2, 2, 4, 4, 6, 6, 7]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    fmt=st.sampled_from(cases.FORMATS),
    tokens=st.integers(0, 9),
    num_heads=st.integers(1, 5),
    head_dim=st.sampled_from(_abi.HEAD_DIMS),
    rope=st.integers(1, 16),
    layout=st.sampled_from(cases.LAYOUTS),
    positions_dtype=st.sampled_from([torch.int32, torch.int64]),
    cache_dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    weights_dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    weights_out_dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    options=st.sampled_from(cases.OPTION_COMBINATIONS),
)
def test_the_triton_interpreter_equals_the_reference(interpreter, rope, options, head_dim, **arguments):
    rope_dim = min(rope * 16, head_dim)
    interpreter.check("random_case", rope_dim=rope_dim, head_dim=head_dim, **options, **arguments)


@pytest.mark.parametrize("num_heads", [8, 5, 3, 1])
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_the_triton_interpreter_with_few_heads(interpreter, fmt, num_heads):
    """A program takes rows of several tokens, and the last one rows past the end."""
    for tokens, options in zip((1, 2, 7, 33), cases.OPTION_COMBINATIONS[::2], strict=True):
        interpreter.check("random_case", fmt=fmt, num_heads=num_heads, tokens=tokens, **options)


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_layouts_do_not_change_the_reference(fmt, layout):
    laid_out, plain = cases.random_case(1, fmt=fmt, layout=layout), cases.random_case(1, fmt=fmt)
    cases.assert_same(cases.reference(laid_out), cases.reference(plain))


# The peak is VmHWM and not ru_maxrss, which a process takes over from the one that started it.
MEMORY = """
import re, sys
from dataclasses import replace
from pathlib import Path
import torch
import cases
from iq_ops import reference
torch.set_num_threads(1)
small = cases.random_case(1, fmt=sys.argv[1], tokens=4, num_heads=64)
q = torch.randint(-(2**15), 2**15, (3072, 64, 128), dtype=torch.int16).view(torch.bfloat16)
case = replace(small, q=q, positions=torch.zeros(3072, dtype=torch.int64), weights=torch.ones(3072, 64))
outputs = cases.poisoned_outputs(case, 0)
raw = getattr(reference, case.op)
cases.run(raw, small)
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
raw(**case.inputs, **outputs)
print((peak() - before) / 1024)
"""


@pytest.mark.parametrize(("fmt", "limit_mib"), [("fp8", 420), ("mxfp4", 190)])
def test_the_reference_takes_bounded_memory_however_many_tokens(fmt, limit_mib):
    """Six passes take what one takes, and so it is at any T; all rows at once would take twice the limit (measured)."""
    assert reference.CHUNK_ELEMENTS * 6 <= 3072 * 64 * 128
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, fmt],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=cases.GOLDEN.parent,
    )
    assert 20 < float(done.stdout) < limit_mib, done.stdout


LONG = (0, 1, 2, 7, 31, 32, 511, 512, 513, 1023, 4096, 65_536, 262_145)
gpu_kernels = pytest.mark.parametrize("backend", [pytest.param(name, marks=pytest.mark.gpu) for name in KERNELS])


def check_on_gpu(backend, case):
    cases.assert_same(cases.run(kernel(backend, case.op), case), cases.reference(case), (backend, case.name))


@gpu_kernels
@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("tokens", LONG)
def test_every_length(backend, fmt, tokens):
    check_on_gpu(backend, cases.random_case(tokens, fmt=fmt, tokens=tokens, num_heads=64, device="cuda"))
    torch.cuda.empty_cache()


@gpu_kernels
@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("num_heads", [1, 3, 5, 8, 24, 32, 64, 96, 128])
@pytest.mark.parametrize("head_dim", _abi.HEAD_DIMS)
def test_every_head_count(backend, fmt, num_heads, head_dim):
    for tokens in (1, 17, 300):
        case = cases.random_case(
            tokens, fmt=fmt, tokens=tokens, num_heads=num_heads, head_dim=head_dim, rope_dim=32, device="cuda"
        )
        check_on_gpu(backend, case)


def can_take(backend, case):
    """Whether a kernel takes this layout, by its own `why_not`: what it refuses goes to the next backend."""
    from iq_ops import _requests

    tensors = {name: getattr(case, name) for name in ("positions", "q", "cos_sin_cache", "weights")}
    facts = {name: _requests.facts_of(tensor) for name, tensor in tensors.items()}
    weights_out = str(case.weights_out_dtype).removeprefix("torch.")
    facts.update(_requests.output_facts(_abi.OPS[case.op], facts, weights_out))
    request = _requests.request_of(case.op, facts, case.q.device, **case.options)
    (entry,) = (e for e in importlib.metadata.entry_points(group=_abi.ENTRY_POINT_GROUP) if e.name == backend)
    return entry.load().why_not(request) is None


@gpu_kernels
@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("tokens", [5, 1023])
def test_every_layout(backend, fmt, layout, tokens):
    case = cases.random_case(
        11, fmt=fmt, tokens=tokens, num_heads=32, layout=layout, positions_dtype=torch.int32, device="cuda"
    )
    if can_take(backend, case):
        check_on_gpu(backend, case)
    else:
        assert backend != "triton", "Triton takes every layout of the contract"
        assert layout != "contiguous"


@gpu_kernels
@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("options", cases.OPTION_COMBINATIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_every_option_and_dtype(backend, fmt, options):
    for number, (positions, cache, weights, weights_out) in enumerate(
        (p, c, w, o)
        for p in (torch.int32, torch.int64)
        for c in (torch.float32, torch.bfloat16)
        for w in (torch.bfloat16, torch.float16, torch.float32)
        for o in (torch.float32, torch.bfloat16)
    ):
        head_dim, rope_dim = ((128, 64), (64, 64), (256, 48))[(number + number // 6) % 3]  # a kernel each
        case = cases.random_case(
            number, fmt=fmt, tokens=33, num_heads=8, head_dim=head_dim, rope_dim=rope_dim, device="cuda",
            positions_dtype=positions, cache_dtype=cache, weights_dtype=weights, weights_out_dtype=weights_out,
            **options,
        )  # fmt: skip
        check_on_gpu(backend, case)


@gpu_kernels
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_two_hundred_repeats_give_equal_bytes(backend, fmt):
    case = cases.random_case(12, fmt=fmt, tokens=1023, num_heads=64, device="cuda")
    raw = kernel(backend, case.op)
    first = cases.run(raw, case)
    for repeat in range(200):
        cases.assert_same(cases.run(raw, case), first, repeat)


@gpu_kernels
@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_offsets_beyond_32_bits(backend, fmt):
    """A token stride of 2**30 elements puts the third token of q at the offset 2**31."""
    case = cases.random_case(13, fmt=fmt, tokens=4, num_heads=4, device="cuda")
    far = torch.empty_strided(case.q.shape, (1 << 30, 128, 1), dtype=torch.bfloat16, device="cuda").copy_(case.q)
    cases.assert_same(cases.run(kernel(backend, case.op), replace(case, q=far)), cases.reference(case))
    torch.cuda.empty_cache()
