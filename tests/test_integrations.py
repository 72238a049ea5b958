"""Drop-in for engines: stand-ins shaped like their modules; the swap and its undoing; structure, dtypes, bytes."""

from __future__ import annotations

import gc
import importlib
import inspect
import subprocess
import sys
import textwrap
import types
import weakref

import pytest
import torch

import cases
import iq_ops
from iq_ops import _requests, specs
from iq_ops.integrations import sglang, vllm
from iq_ops.integrations._swap import Swap

VLLM_HOME = "vllm.models.deepseek_v4.common.ops.fused_indexer_q"
VLLM_OLD_HOME = "vllm.v1.attention.ops.deepseek_v4_ops.fused_indexer_q"
SGLANG_HOME = "sglang.kernels.ops.attention.dsv4.elementwise"
NAME = "fused_indexer_q_rope_quant"
SGLANG_NAMES = (
    "fused_q_indexer_rope_hadamard_quant",
    "fused_q_indexer_rope_hadamard_fp4_quant",
    "fused_q_indexer_rope_first_quant",
)

# What the stand-ins define: the engines' names and parameters, and nothing of what they do.
VLLM_SOURCE = """
    def fused_indexer_q_rope_quant(
        positions, index_q, index_q_cos_sin_cache, index_weights, index_weights_softmax_scale,
        index_weights_head_scale, use_fp4=False,
    ):
        return "the engine's"
"""
SGLANG_SOURCE = """
    def fused_q_indexer_rope_hadamard_quant(q_input, weight, weight_scale, freqs_cis, positions):
        return "the engine's"

    def fused_q_indexer_rope_hadamard_fp4_quant(q_input, weight, weight_scale, freqs_cis, positions):
        return "the engine's"

    def fused_q_indexer_rope_first_quant(q_input, weight, weight_scale, cos_sin_cache, positions):
        return "the engine's"
"""
SAME_NAME_SOURCE = """
    def fused_indexer_q_rope_quant(positions, q, cos_sin_cache, weights, softmax_scale, head_scale, is_neox):
        return "another function"
"""


class Engine:
    """Modules in sys.modules that import from each other as an engine's do."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    def module(self, name, source=""):
        """Make a module, and the packages around it, from source."""
        parts = name.split(".")
        for depth in range(1, len(parts)):
            package = ".".join(parts[:depth])
            if package not in sys.modules:
                self._add(package).__path__ = []
        module = self._add(name)
        exec(textwrap.dedent(source), vars(module))
        return module

    def _add(self, name):
        module = types.ModuleType(name)
        self._monkeypatch.setitem(sys.modules, name, module)
        return module


@pytest.fixture
def engine(monkeypatch):
    yield Engine(monkeypatch)
    vllm.uninstall()
    sglang.uninstall()


@pytest.fixture
def a_vllm(engine):
    """The defining module, the package that exports it on, and two modules that call it."""
    engine.module("vllm.models.deepseek_v4.common.ops")
    home = engine.module(VLLM_HOME, VLLM_SOURCE)
    engine.module("vllm.models.deepseek_v4.common.ops", f"from {VLLM_HOME} import {NAME}")
    engine.module("vllm.models.deepseek_v4.attention", f"from vllm.models.deepseek_v4.common.ops import {NAME}")
    engine.module("vllm.models.deepseek_v4.amd", f"from {VLLM_HOME} import {NAME} as quantize\nunrelated = 1")
    return home


PLACES = {
    f"{VLLM_HOME}.{NAME}",
    f"vllm.models.deepseek_v4.common.ops.{NAME}",
    f"vllm.models.deepseek_v4.attention.{NAME}",
    "vllm.models.deepseek_v4.amd.quantize",
}


def at(place):
    module, _, name = place.rpartition(".")
    return getattr(sys.modules[module], name)


def positional(case, *rest):
    inputs = (case.positions, case.q, case.cos_sin_cache, case.weights)
    return (*inputs, case.softmax_scale, case.head_scale, *rest)


# The call and what it returns


@pytest.mark.parametrize("fmt", cases.FORMATS)
@pytest.mark.parametrize("weights_out_dtype", [torch.float32, torch.bfloat16])
def test_the_positional_call_of_engines_returns_their_structure(fmt, weights_out_dtype):
    case = cases.random_case(3, fmt=fmt, tokens=5, num_heads=8)
    arguments = positional(case, fmt == "mxfp4", weights_out_dtype)
    quantized, weights_out = result = iq_ops.fused_indexer_q_rope_quant(*arguments)
    assert type(result) is tuple
    assert (weights_out.dtype, weights_out.shape) == (weights_out_dtype, (5, 8))
    if fmt == "fp8":
        assert (quantized.dtype, quantized.shape) == (torch.float8_e4m3fn, (5, 8, 128))
    else:
        assert type(quantized) is tuple
        q_packed, q_scale = quantized
        assert (q_packed.dtype, q_packed.shape) == (torch.uint8, (5, 8, 64))
        assert (q_scale.dtype, q_scale.shape) == (torch.int32, (5, 8))
        assert q_scale.is_contiguous()


def test_the_parameters_are_those_that_engines_pass_by_name():
    parameters = inspect.signature(iq_ops.fused_indexer_q_rope_quant).parameters
    by_position = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == [
        "positions", "index_q", "index_q_cos_sin_cache", "index_weights", "index_weights_softmax_scale",
        "index_weights_head_scale", "use_fp4", "weights_out_dtype",
    ]  # fmt: skip
    assert parameters["use_fp4"].default is False
    assert parameters["weights_out_dtype"].default is torch.float32


# vLLM


def test_vllm_is_swapped_wherever_it_was_imported_and_restored(a_vllm):
    theirs = {place: id(at(place)) for place in PLACES}
    assert set(vllm.install()) >= PLACES
    ours = a_vllm.fused_indexer_q_rope_quant
    assert ours.func is iq_ops.fused_indexer_q_rope_quant
    assert all(at(place) is ours for place in PLACES)
    assert sys.modules["vllm.models.deepseek_v4.amd"].unrelated == 1
    assert set(vllm.uninstall()) >= PLACES
    assert {place: id(at(place)) for place in PLACES} == theirs
    assert all(at(place)(*range(6)) == "the engine's" for place in PLACES)


@pytest.mark.parametrize("fmt", cases.FORMATS)
def test_a_call_site_of_vllm_gets_the_bytes_of_the_contract(a_vllm, engine, fmt):
    case = cases.random_case(4, fmt=fmt, tokens=6, num_heads=4)
    use_fp4 = fmt == "mxfp4"
    assert at(f"vllm.models.deepseek_v4.attention.{NAME}")(*positional(case), use_fp4=use_fp4) == "the engine's"
    vllm.install()
    result = at(f"vllm.models.deepseek_v4.attention.{NAME}")(*positional(case), use_fp4=use_fp4)
    cases.assert_same(cases.raw_outputs(case, result), cases.reference(case), case.name)


def test_modules_imported_after_the_swap_get_ours_and_lose_it_again(a_vllm, engine):
    vllm.install()
    late = engine.module("vllm.late", f"from vllm.models.deepseek_v4.common.ops import {NAME} as later")
    assert late.later is a_vllm.fused_indexer_q_rope_quant
    vllm.uninstall()
    assert late.later is a_vllm.fused_indexer_q_rope_quant
    assert late.later(*range(6)) == "the engine's"


def test_installing_twice_keeps_the_engines_function(a_vllm, engine):
    vllm.install()
    ours = a_vllm.fused_indexer_q_rope_quant
    assert vllm.install() == ()
    assert a_vllm.fused_indexer_q_rope_quant is ours
    vllm.uninstall()
    assert a_vllm.fused_indexer_q_rope_quant(*range(6)) == "the engine's"
    assert vllm.uninstall() == ()
    assert a_vllm.fused_indexer_q_rope_quant(*range(6)) == "the engine's"


def test_a_second_install_with_another_spec_replaces_the_first(a_vllm):
    case = cases.random_case(5, fmt="fp8", tokens=3, num_heads=4, hadamard=True)
    vllm.install()
    vllm.install(spec=specs.DEEPSEEK_V4_HADAMARD)
    result = at("vllm.models.deepseek_v4.amd.quantize")(*positional(case))
    cases.assert_same(cases.raw_outputs(case, result), cases.reference(case), case.name)
    vllm.uninstall()
    assert at("vllm.models.deepseek_v4.amd.quantize")(*range(6)) == "the engine's"


def test_an_import_from_iq_ops_stays_ours_after_uninstall(a_vllm, engine):
    user = engine.module("a_user_of_ours", f"from iq_ops import {NAME}")
    vllm.install()
    vllm.uninstall()
    assert user.fused_indexer_q_rope_quant is iq_ops.fused_indexer_q_rope_quant


def test_another_function_of_the_same_name_stays_untouched(a_vllm, engine):
    other = engine.module("vllm.model_executor.layers.sparse_attn_indexer", SAME_NAME_SOURCE)
    vllm.install()
    assert other.fused_indexer_q_rope_quant(*range(7)) == "another function"


def test_a_function_with_other_parameters_is_refused_and_nothing_swapped(engine):
    home = engine.module(VLLM_HOME, SAME_NAME_SOURCE)
    with pytest.raises(RuntimeError, match=r"takes \(positions, q, .*is_neox\), which iq_ops does not"):
        vllm.install()
    assert home.fused_indexer_q_rope_quant(*range(7)) == "another function"
    assert vllm.uninstall() == ()


def test_the_earlier_home_of_vllms_function_is_found(engine):
    home = engine.module(VLLM_OLD_HOME, VLLM_SOURCE)
    vllm.install()
    assert home.fused_indexer_q_rope_quant.func is iq_ops.fused_indexer_q_rope_quant


@pytest.mark.parametrize(("module", "name"), [(vllm, "vLLM"), (sglang, "SGLang")])
def test_without_the_engine_a_clear_import_error(module, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name.lower(), None)  # as if it were not installed, wherever this runs
    for home in module._SWAP._modules:
        monkeypatch.setitem(sys.modules, home, None)
    with pytest.raises(ImportError, match=f"{name} is not installed here.*pip install {name.lower()}"):
        module.install()


def test_an_engine_without_the_function_is_a_clear_import_error(engine):
    engine.module("vllm.version")
    with pytest.raises(ImportError, match=r"this vLLM has none of the modules vllm\.models\.deepseek_v4"):
        vllm.install()
    engine.module(VLLM_HOME)
    with pytest.raises(ImportError, match=f"has no {NAME}; nothing was swapped"):
        vllm.install()


def test_an_engine_that_misses_a_dependency_says_which(tmp_path, monkeypatch):
    package = tmp_path / "an_engine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text("import a_dependency_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_dependency_that_is_missing"):
        Swap("An engine", "an_engine", ("an_engine.ops",)).install({})
    monkeypatch.delitem(sys.modules, "an_engine")


def test_a_lazy_module_is_not_loaded_by_the_scan(a_vllm, tmp_path, monkeypatch):
    (tmp_path / "lazily.py").write_text("raise RuntimeError('loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.find_spec("lazily")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazily", module)
    spec.loader.exec_module(module)
    assert set(vllm.install()) >= PLACES


def test_gpus_with_another_fp8_format_are_refused(a_vllm, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(_requests, "target_of", lambda device_type, index: "gfx942")
    with pytest.raises(RuntimeError, match="float8_e4m3fnuz on gfx942"):
        vllm.install()
    assert a_vllm.fused_indexer_q_rope_quant(*range(6)) == "the engine's"
    monkeypatch.setattr(_requests, "target_of", lambda device_type, index: "gfx950")
    assert set(vllm.install()) >= PLACES


def test_importing_the_integrations_imports_no_engine():
    program = """
        import sys, iq_ops
        assert "iq_ops.integrations" not in sys.modules
        iq_ops.integrations.vllm, iq_ops.integrations.sglang
        assert not {"vllm", "sglang"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program)], check=True, timeout=300)


def test_the_swapped_function_compiles_into_one_graph(a_vllm):
    case = cases.random_case(6, fmt="fp8", tokens=5, num_heads=4)
    vllm.install()
    torch._dynamo.reset()
    quantize = at(f"vllm.models.deepseek_v4.attention.{NAME}")
    result = torch.compile(lambda *inputs: quantize(*inputs), fullgraph=True, backend="aot_eager")(*positional(case))
    cases.assert_same(cases.raw_outputs(case, result), cases.reference(case), case.name)
    torch._dynamo.reset()


# SGLang


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
