"""Drop-in for SGLang: its shapes, dtypes and names on the contract's bytes; its rotary table; the swap."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest
import torch

import cases
import iq_ops
from engine_stand_ins import standing_in  # noqa: F401 - a fixture
from iq_ops import specs
from iq_ops.integrations import sglang

SGLANG_HOME = "sglang.kernels.ops.attention.dsv4.elementwise"
SGLANG_NAMES = (
    "fused_q_indexer_rope_hadamard_quant",
    "fused_q_indexer_rope_hadamard_fp4_quant",
    "fused_q_indexer_rope_first_quant",
)
# What the stand-in defines: the engine's names and parameters, and nothing of what it does.
SGLANG_SOURCE = """
    def fused_q_indexer_rope_hadamard_quant(q_input, weight, weight_scale, freqs_cis, positions):
        return "the engine's"

    def fused_q_indexer_rope_hadamard_fp4_quant(q_input, weight, weight_scale, freqs_cis, positions):
        return "the engine's"

    def fused_q_indexer_rope_first_quant(q_input, weight, weight_scale, cos_sin_cache, positions):
        return "the engine's"
"""


def pairs_of(cos_sin_cache):
    """The table as SGLang keeps it: complex64 (P, R/2)."""
    return torch.complex(*cos_sin_cache.chunk(2, -1))


def sglang_call(name, case, table):
    weight_scale = case.softmax_scale * case.head_scale
    return getattr(sglang, name)(case.q, case.weights, weight_scale, table, case.positions)


def raw_of_sglang(case, result):
    """Undo the shapes and dtypes of SGLang; what is left are the ABI's tensors."""
    quantized, weights_out = result
    tokens, heads = case.weights.shape
    assert (weights_out.shape, weights_out.dtype) == ((tokens, heads, 1), torch.float32)
    if case.fmt == "fp8":
        assert (quantized.shape, quantized.dtype) == ((tokens, heads, 128), torch.float8_e4m3fn)
        return cases.raw_outputs(case, (quantized, weights_out.squeeze(-1)))
    q_fp4, q_sf = quantized
    assert (q_fp4.shape, q_fp4.dtype) == ((tokens, heads, 64), torch.int8)
    assert (q_sf.shape, q_sf.dtype) == ((tokens, heads), torch.int32)
    return cases.raw_outputs(case, ((q_fp4.view(torch.uint8), q_sf), weights_out.squeeze(-1)))


SGLANG_CASES = {
    "fused_q_indexer_rope_hadamard_quant": {"fmt": "fp8", "hadamard": True},
    "fused_q_indexer_rope_hadamard_fp4_quant": {"fmt": "mxfp4", "hadamard": True},
    "fused_q_indexer_rope_first_quant": {"fmt": "fp8", "rope_at": "head"},
}


def sglang_case(name, seed=7, **options):
    return cases.random_case(seed, tokens=5, num_heads=4, **SGLANG_CASES[name], **options)


@pytest.mark.parametrize("name", SGLANG_NAMES)
@pytest.mark.parametrize("table", ["complex", "real"])
def test_sglangs_functions_give_the_contracts_bytes_in_sglangs_shapes(name, table):
    case = sglang_case(name)
    freqs_cis = case.cos_sin_cache
    if "hadamard" in name:
        freqs_cis = pairs_of(case.cos_sin_cache)
        freqs_cis = freqs_cis if table == "complex" else torch.view_as_real(freqs_cis).flatten(-2)
    raw = raw_of_sglang(case, sglang_call(name, case, freqs_cis))
    cases.assert_same(raw, cases.reference(case), case.name)


@pytest.mark.parametrize("name", SGLANG_NAMES)
def test_sglangs_parameters_are_sglangs(name):
    table = "cos_sin_cache" if "first" in name else "freqs_cis"
    expected = ["q_input", "weight", "weight_scale", table, "positions"]
    assert list(inspect.signature(getattr(sglang, name)).parameters) == expected


def test_sglang_is_swapped_and_restored(engine):
    home = engine.module(SGLANG_HOME, SGLANG_SOURCE)
    user = engine.module(
        "sglang.srt.layers.attention.dsv4.indexer", f"from {SGLANG_HOME} import {', '.join(SGLANG_NAMES)}"
    )
    ours = [getattr(sglang, name) for name in SGLANG_NAMES]
    sglang.install()
    for name in SGLANG_NAMES:
        assert getattr(home, name) is getattr(user, name)
        case = sglang_case(name)
        table = pairs_of(case.cos_sin_cache) if "hadamard" in name else case.cos_sin_cache
        weight_scale = case.softmax_scale * case.head_scale
        result = getattr(user, name)(case.q, case.weights, weight_scale, table, case.positions)
        cases.assert_same(raw_of_sglang(case, result), cases.reference(case), name)
    sglang.uninstall()
    assert all(getattr(home, name)(*range(5)) == getattr(user, name)(*range(5)) for name in SGLANG_NAMES)
    assert home.fused_q_indexer_rope_first_quant(*range(5)) == "the engine's"
    assert [getattr(sglang, name) for name in SGLANG_NAMES] == ours


def test_a_sglang_with_fewer_functions_gets_those_it_has(engine):
    home = engine.module("sglang.jit_kernel.deepseek_v4", SGLANG_SOURCE.replace("first_quant", "other_quant"))
    places = sglang.install()
    assert {place.rpartition(".")[2] for place in places} == set(SGLANG_NAMES[:2])
    assert home.fused_q_indexer_rope_other_quant(*range(5)) == "the engine's"


def test_the_table_is_converted_once_and_kept_while_it_lives():
    freqs_cis = pairs_of(torch.randn(16, 64))
    cache = sglang.cos_sin_cache(freqs_cis)
    assert torch.equal(cache, torch.cat((freqs_cis.real, freqs_cis.imag), -1))
    assert sglang.cos_sin_cache(freqs_cis) is cache
    assert sglang.cos_sin_cache(freqs_cis.clone()) is not cache
    kept = weakref.ref(cache)
    del cache, freqs_cis
    gc.collect()
    assert kept() is None


def test_a_write_into_the_table_is_noticed_and_the_kept_memory_stays():
    freqs_cis = pairs_of(torch.randn(16, 64))
    cache = sglang.cos_sin_cache(freqs_cis)
    address = cache.data_ptr()
    freqs_cis[3] = 2 - 3j
    with torch.inference_mode():  # where an engine runs
        again = sglang.cos_sin_cache(freqs_cis)
    assert again.data_ptr() == address
    assert (again[3, :32] == 2).all()
    assert (again[3, 32:] == -3).all()
    assert sglang.cos_sin_cache(freqs_cis) is again


def test_a_table_that_changes_its_memory_is_converted_again():
    freqs_cis = pairs_of(torch.randn(16, 64))
    sglang.cos_sin_cache(freqs_cis)
    freqs_cis.data = pairs_of(torch.ones(24, 64))
    assert torch.equal(sglang.cos_sin_cache(freqs_cis), torch.ones(24, 64))


def test_a_table_without_a_count_of_writes_is_never_stale():
    with torch.inference_mode():
        freqs_cis = pairs_of(torch.randn(16, 64))
        iq_ops._backends._warned.clear()
        with pytest.warns(RuntimeWarning, match="made under torch.inference_mode"):
            sglang.cos_sin_cache(freqs_cis)
        freqs_cis.fill_(1)
        assert torch.equal(sglang.cos_sin_cache(freqs_cis)[:, :32], torch.ones(16, 32))


@pytest.mark.parametrize("name", SGLANG_NAMES)
def test_sglangs_functions_compile_into_one_graph(name):
    case = sglang_case(name)
    table = pairs_of(case.cos_sin_cache) if "hadamard" in name else case.cos_sin_cache
    torch._dynamo.reset()
    compiled = torch.compile(lambda table: sglang_call(name, case, table), fullgraph=True, backend="eager")
    cases.assert_same(raw_of_sglang(case, compiled(table)), cases.reference(case), name)
    torch._dynamo.reset()


def test_wrong_arguments_are_named_as_sglang_names_them():
    case = sglang_case("fused_q_indexer_rope_hadamard_fp4_quant")
    for table, error, message in (
        (case.cos_sin_cache.bfloat16(), TypeError, r"freqs_cis: expected torch\.complex64 or torch\.float32, got"),
        (None, TypeError, "freqs_cis: expected .* got NoneType"),
        (pairs_of(case.cos_sin_cache)[None], ValueError, r"freqs_cis: expected shape \(P, R/2\)"),
        (torch.ones(4, 63), ValueError, r"freqs_cis: expected shape \(P, R/2\)"),
    ):
        with pytest.raises(error, match=message):
            sglang_call("fused_q_indexer_rope_hadamard_quant", case, table)
    small = cases.random_case(1, fmt="mxfp4", tokens=2, num_heads=2, head_dim=64)
    with pytest.raises(ValueError, match="q_input: expected a head dim of 128"):
        sglang_call("fused_q_indexer_rope_hadamard_fp4_quant", small, pairs_of(case.cos_sin_cache))


@pytest.mark.gpu
def test_a_captured_graph_reads_the_table_as_it_is_written_later():
    case = cases.random_case(
        8, fmt="fp8", tokens=5, num_heads=4, hadamard=True, device="cuda", cache_dtype=torch.float32
    )
    freqs_cis = pairs_of(case.cos_sin_cache)
    name = "fused_q_indexer_rope_hadamard_quant"
    iq_ops.warmup(4, formats=("fp8",), spec=specs.DEEPSEEK_V4_HADAMARD)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        case.q.clone()  # PyTorch warns of an empty capture
        with pytest.raises(RuntimeError, match=r"cos_sin_cache\(freqs_cis\) once before"):
            sglang_call(name, case, freqs_cis)
    sglang_call(name, case, freqs_cis)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = sglang_call(name, case, freqs_cis)
    freqs_cis.copy_(freqs_cis.flip(0))
    eager = sglang_call(name, case, freqs_cis)
    graph.replay()
    # A position past the table makes NaN of its row's weights.
    cases.assert_same(raw_of_sglang(case, result), raw_of_sglang(case, eager))
