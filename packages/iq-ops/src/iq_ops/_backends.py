"""Backends: found by entry points, admitted by the ABI handshake, chosen by preference for each request.

A provider is a module behind the entry point group `iq_ops.backends`. One that is absent is silent; one that is broken
or speaks another ABI is refused, reported by `backends()` and warned about once, and takes no other one down.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import _abi, _reference_provider

ABSENT = {
    "cute": ("iq-kernels-cute", "python -m pip install 'iq-ops[cute]'"),
    "triton": ("iq-kernels-triton", "python -m pip install iq-kernels-triton"),
}


class BackendUnavailableError(RuntimeError):
    """A backend was asked for by name and cannot run the call; the message says why and what to do."""


@dataclass(frozen=True)
class Backend:
    """What `backends()` says of one backend. `reason` is None where `usable`; `abi` is its integer for each operation.

    state: "ready", "absent" (not installed), "skewed" (speaks another ABI) or "broken" (raised an error).
    """

    name: str
    distribution: str
    version: str | None
    preference: int
    abi: Mapping[str, int]
    state: str
    reason: str | None
    provider: Any = field(default=None, repr=False, compare=False)

    @property
    def usable(self) -> bool:
        """Whether calls may be sent to it; what it says of one call, `explain` tells."""
        return self.state == "ready"


@dataclass(frozen=True)
class Verdict:
    """One backend's answer to one request: `reason` is None where it can run it."""

    backend: Backend
    reason: str | None


@functools.cache
def forced_by_environment() -> str | None:
    """The value of IQ_OPS_BACKEND, read once, at the first call: an environment look-up costs a tenth of a launch."""
    return os.environ.get("IQ_OPS_BACKEND") or None


# What `_abi.py` has providers hold beside `describe`.
_PROVIDER_MEMBERS = ("why_not", "load", "warmup_jobs", "compile_count", "environment", "CompileError")

Result = TypeVar("Result")

_lock = threading.Lock()
_found: tuple[Backend, ...] | None = None
_warned: set[str] = set()
_compile_failures: dict[tuple[str, _abi.Workload], str] = {}


def backends() -> tuple[Backend, ...]:
    """Every backend, known or installed, the most preferred first, with why it is not usable where it is not."""
    global _found
    with _lock:
        if _found is None:
            _found = _discover()
        return _found


def reset() -> None:
    """Forget what was found, warned of and read from the environment, as a new process would begin."""
    global _found
    with _lock:
        _found = None
    _warned.clear()
    _compile_failures.clear()
    forced_by_environment.cache_clear()


def verdicts(request: _abi.Request, forced: str | None) -> list[Verdict]:
    """Ask every backend about one request, the most preferred first. `forced` restricts it to one."""
    answers = []
    for backend in backends():
        reason = f"{forced!r} was forced" if forced not in (None, backend.name) else _why_not(backend, request)
        if reason is None and forced is None and request.device_type == "cpu" and backend.name != "reference":
            reason = f"on the CPU the reference is taken unless {backend.name!r} is forced"
        answers.append(Verdict(backend, reason))
    return answers


def run_first(
    request: _abi.Request,
    forced: str | None,
    attempt: Callable[[Backend, Callable[..., None], Sequence[str]], Result],
) -> Result:
    """Call `attempt(backend, raw, passed_over)` for the best backend and return what it returns.

    A backend that fails to compile is passed over with one warning, or its error is raised where it was forced.
    Raises BackendUnavailableError where no backend can run the request.
    """
    answers = verdicts(request, forced)
    passed_over = [f"{answer.backend.name}: {answer.reason}" for answer in answers if not answer.backend.usable]
    for answer in answers:
        backend, reason = answer.backend, answer.reason
        if reason is None:
            raw, reason = _load(backend, request.op)
            if raw is not None:
                try:
                    return attempt(backend, raw, passed_over)
                except backend.provider.CompileError as error:
                    if forced is not None:
                        raise
                    reason = _remember_compile_failure(backend, request, error)
        if backend.name == forced:
            raise BackendUnavailableError(f"backend {forced!r} was forced and cannot run {request.op}: {reason}")
        if backend.usable:
            passed_over.append(f"{backend.name}: {reason}")
    if forced is None:
        raise BackendUnavailableError(f"no backend can run {request.op}: {'; '.join(passed_over)}")
    raise BackendUnavailableError(unknown_backend(forced))


def bound(backend: Backend, request: _abi.Request) -> Callable[..., None] | None:
    """What later calls of this request's signature are run with, past the provider's look-ups; None if it has none."""
    bind = getattr(backend.provider, "bind", None)
    if bind is None:
        return None
    try:
        run: Callable[..., None] | None = bind(request)
    except Exception as error:
        warn_once(f"iq_ops: backend {backend.name!r} is called the long way: its bind raised {error!r}")
        return None
    return run


def unknown_backend(name: str) -> str:
    """The message for a backend name that nothing answers to."""
    known = ", ".join(repr(backend.name) for backend in backends())
    return f"backend {name!r} is not known; known are {known}. Check backend= and IQ_OPS_BACKEND."


def warn_once(message: str) -> None:
    """Warn once a process for each message, whatever the warning filters are."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def warn_of_slow_reference(request: _abi.Request, passed_over: Sequence[str]) -> None:
    """Warn that no kernel can run a request on its device, with every backend's reason."""
    warn_once(
        f"iq_ops: no kernel can run {request.op} on {request.target}, so the slow reference does ("
        + "; ".join(passed_over)
        + "). iq_ops.explain tells the same of any call."
    )


def workload_of(request: _abi.Request) -> _abi.Workload:
    """The workload that a request belongs to: all that decides a compile, but neither tokens nor strides."""
    tensors = request.tensors
    return _abi.Workload(
        op=request.op,
        num_heads=tensors["q"].shape[1],
        head_dim=tensors["q"].shape[2],
        rope_dim=tensors["cos_sin_cache"].shape[1],
        positions_dtype=tensors["positions"].dtype,
        cos_sin_cache_dtype=tensors["cos_sin_cache"].dtype,
        weights_dtype=tensors["weights"].dtype,
        weights_out_dtype=tensors["weights_out"].dtype,
        rope_style=request.rope_style,
        rope_at=request.rope_at,
        hadamard=request.hadamard,
        target=request.target,
        device_index=request.device_index,
    )


def _discover() -> tuple[Backend, ...]:
    import importlib.metadata

    found = {"reference": _admit("reference", lambda: _reference_provider)}
    try:
        entries = list(importlib.metadata.entry_points(group=_abi.ENTRY_POINT_GROUP))
    except Exception as error:  # the metadata of any installed distribution can be damaged
        entries = []
        warn_once(f"iq_ops: entry points cannot be read, so that only the reference is there: {error!r}")
    for entry in entries:
        backend = _admit(entry.name, entry.load)
        if backend.name in found:
            warn_once(
                f"iq_ops: entry point {entry.value!r} is ignored: a backend named {backend.name!r} exists already"
            )
        else:
            found[backend.name] = backend
    for name, (distribution, command) in ABSENT.items():
        if name not in found:
            found[name] = Backend(name, distribution, None, 0, {}, "absent", f"not installed. Remedy: {command}")
    for backend in found.values():
        if backend.state in ("broken", "skewed"):
            warn_once(f"iq_ops: backend {backend.name!r} is not used: {backend.reason}")
    return tuple(sorted(found.values(), key=lambda backend: (backend.usable, backend.preference), reverse=True))


def _admit(entry_name: str, load: Callable[[], Any]) -> Backend:
    reason: str | None
    distribution = ABSENT.get(entry_name, (f"the provider of {entry_name!r}", ""))[0]
    try:
        provider = load()
        description = provider.describe()
        names = (description.backend, description.distribution, description.version)
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"describe() gives {names} as backend, distribution and version, which are strings")
        fields = (*names, int(description.preference))
        abi = {str(op): int(version) for op, version in description.abi.items()}
        missing = [name for name in _PROVIDER_MEMBERS if not callable(getattr(provider, name, None))]
        if missing:
            raise AttributeError(f"the provider has no {', '.join(missing)}")
    except (Exception, SystemExit) as error:
        reason = f"{distribution} raised {type(error).__name__}: {error}. Remedy: reinstall or remove it."
        return Backend(entry_name, distribution, None, 0, {}, "broken", reason)
    reason = _skew(fields[1], fields[2], abi)
    return Backend(*fields, abi, "skewed" if reason else "ready", reason, provider)


def _skew(distribution: str, version: str, abi: Mapping[str, int]) -> str | None:
    """Say what differs and the pip command that mends it; None where every shared operation speaks the same ABI."""
    for name, op in _abi.OPS.items():
        theirs = abi.get(name)
        if theirs is None or theirs == op.version:
            continue
        older = distribution if theirs < op.version else "iq-ops"
        return (
            f"{distribution} {version} speaks ABI {theirs} of {name}, this iq-ops speaks ABI {op.version}. "
            f"Remedy: python -m pip install --upgrade {older}"
        )
    return None


def _why_not(backend: Backend, request: _abi.Request) -> str | None:
    if not backend.usable:
        return backend.reason
    if request.op not in backend.abi:
        return f"{backend.distribution} {backend.version} has no {request.op}. Remedy: upgrade {backend.distribution}"
    failure = _compile_failures.get((backend.name, workload_of(request)))
    if failure is not None:
        return failure
    try:
        answer = backend.provider.why_not(request)
    except (Exception, SystemExit) as error:
        reason = f"its why_not raised {type(error).__name__}: {error}"
        warn_once(f"iq_ops: backend {backend.name!r} is passed over: {reason}")
        return reason
    return None if answer is None else str(answer)


def _load(backend: Backend, op: str) -> tuple[Callable[..., None], None] | tuple[None, str]:
    try:
        return backend.provider.load(op), None
    except (Exception, SystemExit) as error:
        reason = f"loading {op} raised {type(error).__name__}: {error}"
        warn_once(f"iq_ops: backend {backend.name!r} is passed over: {reason}")
        return None, reason


def _remember_compile_failure(backend: Backend, request: _abi.Request, error: Exception) -> str:
    reason = f"it failed to compile: {error}"
    _compile_failures[backend.name, workload_of(request)] = reason
    warn_once(f"iq_ops: backend {backend.name!r} is passed over for {request.op}: {reason}")
    return reason
