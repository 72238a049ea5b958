"""The kernels under Triton's interpreter, and on a GPU compiled, equal the golden vectors byte for byte."""

from __future__ import annotations

import pytest

import cases
import iq_kernels_triton
from interpreter import interpreting  # noqa: F401 - a fixture


@pytest.mark.parametrize("name", cases.golden_names())
def test_interpreted(interpreter, name):
    interpreter.check("golden", name=name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", cases.golden_names())
def test_compiled(name):
    case = cases.golden(name, "cuda")
    cases.assert_same(cases.run(getattr(iq_kernels_triton, case.op), case), case.expected)
