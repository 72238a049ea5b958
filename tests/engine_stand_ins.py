"""Stand-ins for engines that are not installed: modules that import from each other as an engine's do."""

from __future__ import annotations

import sys
import textwrap
import types

import pytest

from iq_ops.integrations import sglang, vllm


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


@pytest.fixture(name="engine")
def standing_in(monkeypatch):
    """An engine's modules to make; what was swapped in them is swapped back."""
    yield Engine(monkeypatch)
    vllm.uninstall()
    sglang.uninstall()
