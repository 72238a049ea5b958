"""At home in PyTorch: opcheck, compile, export, grad modes, threads; on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import cases
import iq_ops
from interpreter import interpreting  # noqa: F401 - a fixture
from iq_ops import IndexerQSpec, specs

quantize, quantize_out = iq_ops.fused_indexer_q_rope_quant, iq_ops.fused_indexer_q_rope_quant_out
on_every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
in_both_formats = pytest.mark.parametrize("fmt", cases.FORMATS)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def raw_buffers(case):
    return list(cases.poisoned_outputs(case, 0).values())


@on_every_device
@in_both_formats
@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_opcheck(device, fmt, tokens):
    case = cases.random_case(1, fmt=fmt, tokens=tokens, device=device, layout="slice")
    op = getattr(torch.ops.iq_ops, case.op).default
    options = {"rope_style": "neox", "rope_at": "head", "hadamard": True}
    results = torch.library.opcheck(op, (*case.positional[:6], *raw_buffers(case)), options)
    assert set(results.values()) == {"SUCCESS"}
    backend = {"backend": "reference"}
    torch.library.opcheck(op, (*case.positional[:6], *raw_buffers(case)), backend, test_utils="test_schema")


@in_both_formats
def test_the_schema_mutates_its_outputs_and_nothing_else(fmt):
    op = getattr(torch.ops.iq_ops, f"indexer_q_{fmt}").default
    mutated = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    assert mutated == (["q_fp8", "weights_out"] if fmt == "fp8" else ["q_packed", "q_scale", "weights_out"])
    assert not op._schema.returns
    assert torch.Tag.pt2_compliant_tag in op.tags


@on_every_device
@in_both_formats
def test_compile_with_dynamic_shapes_compiles_a_few_times_for_any_number_of_tokens(device, fmt):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(quantize, fullgraph=True, dynamic=True, backend=counter)
    for tokens in (1, 2, 512):
        case = cases.random_case(tokens, fmt=fmt, tokens=tokens, device=device)
        cases.check_result(case, compiled(*case.positional))
    assert counter.frame_count <= 3
    few = counter.frame_count
    for tokens in (3, 17, 1, 640, 511):
        case = cases.random_case(tokens, fmt=fmt, tokens=tokens, device=device)
        cases.check_result(case, compiled(*case.positional))
    assert counter.frame_count == few


@on_every_device
@in_both_formats
@pytest.mark.filterwarnings("default")  # the compiler's own warnings are not ours to mend
def test_inductor(device, fmt):
    assert device == "cuda" or shutil.which("g++") or shutil.which("gcc"), "inductor needs a C++ compiler"

    def layer(x, case):
        q = (x * 1.0).view(case.q.shape)
        return quantize(case.positions, q, *case.positional[2:], spec=specs.DEEPSEEK_V3_2)

    case = cases.random_case(3, fmt=fmt, device=device, rope_style="neox", rope_at="head", edges=False)
    cases.check_result(case, torch.compile(layer, fullgraph=True)(case.q.flatten(1), case))


@on_every_device
@in_both_formats
def test_out_variant_compiles_into_slices_of_a_workspace(device, fmt):
    case = cases.random_case(4, fmt=fmt, device=device)
    buffers = cases.poisoned_outputs(case, sentinel_rows=2)
    rows = {name: buffer[1:-1] for name, buffer in buffers.items()}

    def layer(arguments, q_out, weights_out, q_scale_out):
        quantize_out(*arguments, q_out=q_out, weights_out=weights_out, q_scale_out=q_scale_out)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    compiled(case.positional, next(iter(rows.values())), rows["weights_out"], rows.get("q_scale"))
    cases.assert_same(rows, cases.reference(case))
    for buffer in buffers.values():
        for row in (buffer[0], buffer[-1]):
            assert bool((row.view(torch.uint8) == cases.POISON).all())


class Indexer(torch.nn.Module):
    """A module as a model has it, for export."""

    def __init__(self, use_fp4, spec):
        super().__init__()
        self.use_fp4, self.spec = use_fp4, spec

    def forward(self, positions, q, cache, weights):
        """Quantize with the scales of a 128-wide head and 8 heads."""
        return quantize(positions, q, cache, weights, 128**-0.5, 8**-0.5, self.use_fp4, spec=self.spec)


@on_every_device
@in_both_formats
def test_export_for_any_number_of_tokens(device, fmt):
    case = cases.random_case(5, fmt=fmt, device=device, hadamard=True)
    tokens = torch.export.Dim("tokens")
    module = Indexer(fmt == "mxfp4", specs.DEEPSEEK_V4_HADAMARD)
    dynamic = ({0: tokens}, {0: tokens}, None, {0: tokens})
    exported = torch.export.export(module, case.positional[:4], dynamic_shapes=dynamic)
    for count in (2, 5, 33):
        other = cases.random_case(count, fmt=fmt, tokens=count, device=device, hadamard=True)
        cases.check_result(other, exported.module()(*other.positional[:4]))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("compiled", [False, True])
@in_both_formats
def test_grad_modes(fmt, mode, compiled):
    call = torch.compile(quantize, fullgraph=True, backend="aot_eager") if compiled else quantize
    with mode():
        case = cases.random_case(6, fmt=fmt)
        result = call(*case.positional)
    cases.check_result(case, result)
    assert not result[1].requires_grad


@pytest.mark.parametrize("name", ["index_q", "index_weights"])
@pytest.mark.parametrize("compiled", [False, True])
def test_inputs_that_require_grad_are_a_clear_error(name, compiled):
    case = cases.random_case(7, weights_dtype=torch.float32, edges=False)
    field = name.removeprefix("index_")
    case = replace(case, **{field: getattr(case, field).clone().requires_grad_()})
    call = torch.compile(quantize, backend="aot_eager", fullgraph=True) if compiled else quantize
    pattern = f"{field}: expected a tensor that needs no gradient, got requires_grad=True. Remedy: .*detach"
    with pytest.raises(Exception, match=pattern) as caught:
        call(*case.positional)
    assert compiled or type(caught.value) is ValueError
    with torch.no_grad():
        cases.check_result(case, call(*case.positional))


def test_errors_of_a_traced_call_name_the_argument():
    case = cases.random_case(8)
    call = torch.compile(quantize, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="weights: expected size H = 8"):
        call(case.positions, case.q, case.cos_sin_cache, case.weights[:, :5], 1.0, 1.0)


def test_fake_tensors_have_the_shapes_of_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    for fmt in cases.FORMATS:
        case = cases.random_case(9, fmt=fmt)
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(tensor) for tensor in case.positional[:4]]
            fake_q, fake_weights = quantize(*fakes, *case.positional[4:])
        real_q, real_weights = quantize(*case.positional)
        flat_fake = [*fake_q, fake_weights] if fmt == "mxfp4" else [fake_q, fake_weights]
        flat_real = [*real_q, real_weights] if fmt == "mxfp4" else [real_q, real_weights]
        for fake, real in zip(flat_fake, flat_real, strict=True):
            assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


@on_every_device
def test_sixteen_threads_at_once(device):
    made = [
        cases.random_case(
            seed, fmt=cases.FORMATS[seed % 2], tokens=1 + seed, layout=cases.LAYOUTS[seed % 5], device=device
        )
        for seed in range(16)
    ]
    iq_ops._library.forget_signatures()
    expected = [cases.reference(case) for case in made]

    def many(index):
        for _ in range(8):
            result = quantize(*made[index].positional)
            if device == "cuda":
                torch.cuda.current_stream().synchronize()
            cases.assert_same(cases.raw_outputs(made[index], result), expected[index], index)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(many, range(16)))


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_tensor_parallel_shard_is_its_slice_of_the_whole(ranks):
    """Heads are independent: a rank's call gives the rows of the whole call, with the whole model's head scale."""
    case = cases.random_case(10, fmt="mxfp4", num_heads=64, tokens=5)
    whole = cases.raw_outputs(case, quantize(*case.positional))
    heads = 64 // ranks
    for rank in range(ranks):
        mine = slice(rank * heads, (rank + 1) * heads)
        shard = replace(case, q=case.q[:, mine], weights=case.weights[:, mine])
        expected = {name: value[:, mine].contiguous() for name, value in whole.items()}
        cases.assert_same(cases.raw_outputs(shard, quantize(*shard.positional)), expected)


def test_triton_can_be_forced_through_the_public_function_under_the_interpreter(interpreter):
    for fmt in cases.FORMATS:
        interpreter.check_public(fmt=fmt, tokens=5, num_heads=2, backend="triton")


def test_specs_are_hashable_constants_that_compile_to_one_graph_each():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(quantize, fullgraph=True, backend=counter)
    case = cases.random_case(11)
    for spec in (specs.DEEPSEEK_V4, IndexerQSpec(), specs.GLM_5):
        compiled(*case.positional, spec=spec)
    assert counter.frame_count == len({specs.DEEPSEEK_V4, IndexerQSpec(), specs.GLM_5}) == 2
