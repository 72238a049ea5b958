"""Whether CuTeDSL is here and works: installed, importable, and the real one.

An unrelated package on PyPI also installs a module called `cutlass`, and a broken install may raise anything.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from functools import lru_cache
from importlib import metadata
from typing import Any

DISTRIBUTIONS = ("nvidia-cutlass-dsl", "apache-tvm-ffi")
REMEDY = "Remedy: python -m pip install --force-reinstall nvidia-cutlass-dsl apache-tvm-ffi"


@lru_cache(maxsize=1)
def problem() -> str | None:
    """Why CuTeDSL cannot be used in this process, in one sentence and a remedy; None if it can. Imports it."""
    missing = [name for name in DISTRIBUTIONS if version(name) is None]
    if missing:
        present = _foreign_module() if "nvidia-cutlass-dsl" in missing else ""
        return f"{' and '.join(missing)} is not installed{present}. Remedy: python -m pip install {' '.join(missing)}"
    try:
        importlib.import_module("tvm_ffi")
        compile_function = module("cutlass.cute").compile
        module("cutlass.cute.runtime").make_fake_tensor  # noqa: B018
    except AttributeError as error:
        return f"the module cutlass is not CuTeDSL's ({error}). {REMEDY}"
    except Exception as error:  # a broken binary package raises ImportError, OSError and worse
        kind = "is not CuTeDSL's or is broken" if isinstance(error, ImportError) else "is broken"
        return f"the module cutlass {kind} ({type(error).__name__}: {error}). {REMEDY}"
    return None if callable(compile_function) else f"cutlass.cute.compile is no function. {REMEDY}"


def module(name: str) -> Any:
    """Import a module of CuTeDSL without garbage collections, which would take a third of the time.

    What it leaves goes straight to the oldest generation: a young collection would look at all of it right afterwards.
    The threshold is changed and not the switch, which another thread may read meanwhile to set it back later.
    """
    if name in sys.modules or not gc.isenabled():
        return importlib.import_module(name)
    young, *older = gc.get_threshold()
    gc.set_threshold(0, *older)
    try:
        return importlib.import_module(name)
    finally:
        if gc.get_freeze_count() == 0:  # else unfreeze would let go what the application froze
            gc.freeze()
            gc.unfreeze()
        gc.set_threshold(young, *older)


def knows(arch: str) -> bool:
    """Whether the installed CuTeDSL compiles for `arch`, like "sm_100a". Call only where `problem()` is None."""
    try:
        architectures = module("cutlass.base_dsl.enums").Arch
    except ImportError:  # before 4.7 the enumeration had another home
        architectures = module("cutlass.base_dsl.arch").Arch
    return arch in architectures.__members__


def version(distribution: str) -> str | None:
    """The installed version of a distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _foreign_module() -> str:
    try:
        spec = importlib.util.find_spec("cutlass")
    except (ImportError, ValueError):
        return ""
    return "" if spec is None else f" (the module cutlass at {spec.origin} belongs to something else)"
