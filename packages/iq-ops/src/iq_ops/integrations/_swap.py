"""Swap an engine's functions for ours wherever they were imported, and back."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from iq_ops import _requests


@dataclass(frozen=True)
class _Pair:
    """An engine's function and the object that stands in for it.

    `ours` is a partial of its own, so that uninstalling finds what install put there, and not a function of iq_ops that
    somebody imported from iq_ops.
    """

    theirs: Callable[..., Any]
    ours: functools.partial[Any]


class Swap:
    """The functions of one engine, found in the first of `modules` that this version of the engine has."""

    def __init__(self, engine: str, distribution: str, modules: Sequence[str]) -> None:
        self._engine, self._distribution, self._modules = engine, distribution, tuple(modules)
        self._pairs: dict[str, _Pair] = {}
        self._lock = threading.Lock()

    def install(self, replacements: Mapping[str, Callable[..., Any]]) -> tuple[str, ...]:
        """Put `replacements` in place of the functions of their names; return the places, as "module.attribute".

        A second call with the same functions swaps what has appeared since. Raises ImportError where the engine or its
        functions are missing, RuntimeError where a signature or the GPU's FP8 format is another; then nothing changes.
        """
        with self._lock:
            module = self._import()
            _refuse_fnuz(self._engine)
            wanted = {name: functools.partial(function) for name, function in replacements.items()}
            if any(not _same(pair.ours, wanted[name]) for name, pair in self._pairs.items()):
                self._restore()
            found = {}
            for name, ours in wanted.items():
                theirs = vars(module).get(name)
                kept = self._pairs.get(name)
                if kept is not None and theirs in (kept.theirs, kept.ours):
                    found[name] = kept
                elif theirs is not None:
                    _check_signature(f"{module.__name__}.{name}", theirs, ours)
                    found[name] = _Pair(theirs, ours)
            if not found:
                names = " or ".join(replacements)
                raise ImportError(f"{module.__name__} of this {self._engine} has no {names}; nothing was swapped")
            self._pairs = found
            return _replace((pair.theirs, pair.ours) for pair in found.values())

    def uninstall(self) -> tuple[str, ...]:
        """Put the engine's functions back, in modules imported since too; return the places. Harmless when repeated."""
        with self._lock:
            return self._restore()

    def _restore(self) -> tuple[str, ...]:
        pairs, self._pairs = self._pairs, {}
        return _replace((pair.ours, pair.theirs) for pair in pairs.values())

    def _import(self) -> ModuleType:
        for name in self._modules:
            module = _imported(name)
            if module is not None:
                return module
        if _imported(self._distribution) is None:
            raise ImportError(
                f"{self._engine} is not installed here, so there is nothing to swap. Remedy: python -m pip install "
                f"{self._distribution}, or call iq_ops directly",
                name=self._distribution,
            )
        raise ImportError(
            f"this {self._engine} has none of the modules {', '.join(self._modules)}. Remedy: upgrade "
            f"{self._distribution} or iq-ops, or call iq_ops directly",
            name=self._distribution,
        )


def _imported(name: str) -> ModuleType | None:
    """Import a module; None where it or a package around it does not exist. What fails inside it is raised."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _same(one: functools.partial[Any], other: functools.partial[Any]) -> bool:
    return one.func is other.func and one.keywords == other.keywords


def _check_signature(place: str, theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Refuse a function that only shares the name: its arguments would be taken for others."""
    expected = list(inspect.signature(theirs).parameters)
    if list(inspect.signature(ours).parameters)[: len(expected)] != expected:
        raise RuntimeError(
            f"{place} takes ({', '.join(expected)}), which iq_ops does not: nothing was swapped. "
            "Remedy: upgrade iq-ops, or call iq_ops where the engine calls its function"
        )


def _refuse_fnuz(engine: str) -> None:
    """Refuse MI300's GPUs, where engines exchange e4m3fnuz: the contract's e4m3fn bytes mean half as much there."""
    if torch.version.hip and torch.cuda.is_available():
        target = _requests.target_of("cuda", 0)
        if target.startswith("gfx94"):
            raise RuntimeError(
                f"{engine} exchanges float8_e4m3fnuz on {target}, and iq_ops writes float8_e4m3fn: nothing was swapped"
            )


def _replace(pairs: Iterable[tuple[object, object]]) -> tuple[str, ...]:
    """Replace each old object by its new one in every module's namespace; return where that was."""
    swaps, places = list(pairs), []
    modules: list[tuple[str, object]] = list(sys.modules.items())
    for module_name, module in modules:
        if not isinstance(module, ModuleType):
            continue
        namespace = object.__getattribute__(module, "__dict__")  # plain access would load a lazy module
        for name, value in list(namespace.items()):
            for old, new in swaps:
                if value is old:
                    namespace[name] = new
                    places.append(f"{module_name}.{name}")
    return tuple(places)
