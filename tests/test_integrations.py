"""Drop-in for engines, vLLM first: a stand-in of its modules; the swap and its undoing; structure, dtypes, bytes."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import textwrap

import pytest
import torch

import cases
import iq_ops
from engine_stand_ins import standing_in  # noqa: F401 - a fixture
from iq_ops import _requests, specs
from iq_ops.integrations import sglang, vllm
from iq_ops.integrations._swap import Swap

VLLM_HOME = "vllm.models.deepseek_v4.common.ops.fused_indexer_q"
VLLM_OLD_HOME = "vllm.v1.attention.ops.deepseek_v4_ops.fused_indexer_q"
NAME = "fused_indexer_q_rope_quant"
# What the stand-in defines: the engine's names and parameters, and nothing of what it does.
VLLM_SOURCE = """
    def fused_indexer_q_rope_quant(
        positions, index_q, index_q_cos_sin_cache, index_weights, index_weights_softmax_scale,
        index_weights_head_scale, use_fp4=False,
    ):
        return "the engine's"
"""
SAME_NAME_SOURCE = """
    def fused_indexer_q_rope_quant(positions, q, cos_sin_cache, weights, softmax_scale, head_scale, is_neox):
        return "another function"
"""


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
    cases.check_result(case, result)


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
    cases.check_result(case, result)
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
    cases.check_result(case, result)
    torch._dynamo.reset()
