"""Planted providers: a test that imports `planting` sees no installed kernel package but those it plants itself."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from iq_ops import _abi, _backends, _library, _requests, reference


class PlantedEntryPoint:
    """An entry point as importlib.metadata has it: a name, a value, and `load`, which may raise."""

    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        self.name, self.value, self.load = name, f"planted.{name}", load


class FakeProvider:
    """A provider that runs the reference under another name, and counts its calls."""

    class CompileError(RuntimeError):
        """What its compiler raises."""

    def __init__(
        self,
        name: str = "triton",
        *,
        preference: int = 100,
        abi: Mapping[str, int] | None = None,
        refuses: str | None = None,
        compile_error: str | None = None,
    ) -> None:
        self.name, self.preference, self.refuses, self.compile_error = name, preference, refuses, compile_error
        self.abi = {op.name: op.version for op in _abi.OPS.values()} if abi is None else abi
        self.calls: list[str] = []
        self.warmed: list[_abi.Workload] = []

    def describe(self) -> Any:
        """Answer by shape, not by class, as another package's `_abi` would."""
        distribution = f"iq-kernels-{self.name}"
        return SimpleNamespace(
            backend=self.name, distribution=distribution, version="9.9", preference=self.preference, abi=self.abi
        )

    def why_not(self, request: Any) -> str | None:
        """Refuse what it was told to refuse."""
        return self.refuses

    def load(self, op: str) -> Callable[..., None]:
        """Return a raw function that fails to compile, or counts and runs the reference."""

        def raw(**arguments: Any) -> None:
            self.calls.append(op)
            if self.compile_error is not None:
                raise self.CompileError(self.compile_error)
            getattr(reference, op)(**arguments)

        return raw

    def warmup_jobs(self, workload: _abi.Workload) -> list[tuple[str, Callable[[], None]]]:
        """One job, which remembers its workload."""

        def job() -> None:
            if self.compile_error is not None:
                raise self.CompileError(self.compile_error)
            if workload not in self.warmed:
                self.warmed.append(workload)

        return [(workload.op, job)]

    def compile_count(self) -> int:
        """How many workloads were warmed."""
        return len(self.warmed)

    def environment(self) -> dict[str, str]:
        """Nothing to tell."""
        return {}


@pytest.fixture(name="plant", autouse=True)
def planting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Plant providers, or loaders that raise, as the only installed entry points; forget all state around the test."""
    planted: list[PlantedEntryPoint] = []
    real = importlib.metadata.entry_points

    def entry_points(**selected: str) -> Any:
        return list(planted) if selected.get("group") == _abi.ENTRY_POINT_GROUP else real(**selected)

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.delenv("IQ_OPS_BACKEND", raising=False)

    def forget() -> None:
        _backends.reset()
        _library.forget_signatures()

    def plant(*providers: FakeProvider, **loaders: Callable[[], Any]) -> None:
        planted.extend(PlantedEntryPoint(provider.name, lambda provider=provider: provider) for provider in providers)
        planted.extend(PlantedEntryPoint(name, load) for name, load in loaders.items())
        forget()

    forget()
    yield plant
    forget()


@pytest.fixture(name="fake_provider")
def providing() -> type[FakeProvider]:
    """The class, for tests to make providers of."""
    return FakeProvider


@pytest.fixture(name="prefer_kernels")
def preferring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU stand in for a GPU, where the reference is not the natural choice."""
    real = _requests.request_of

    def on_a_gpu(*arguments: Any) -> _abi.Request:
        return replace(real(*arguments), device_type="cuda", device_index=0, target="sm_90")

    monkeypatch.setattr(_requests, "request_of", on_a_gpu)
