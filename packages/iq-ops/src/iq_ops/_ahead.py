"""What `iq-ops warmup` tells: whether an architecture can be compiled for, and which backend compiled what where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch

from . import _abi, _backends, _requests, _warmup, specs

_FOLDERS = ("kernel cache", "cache")  # what providers call it in their `environment()`


def unknown_arch(arch: str) -> str | None:
    """Say that `arch` is no name of an architecture, and which was meant; None where it is one."""
    if re.fullmatch(r"sm_\d{2,3}|sm_(9\d|\d{3})a|sm_\d{3}f|gfx[0-9a-f]{3,4}", arch):
        return None
    meant = re.fullmatch(r"(?:sm|compute)?[-_. ]?(\d{2,3})([af]?)", arch.lower())
    if meant is None:
        return f"{arch!r} is no architecture: give one as sm_90, sm_100a or gfx950"
    number, suffix = meant.groups()
    if int(number) < 100:  # no family has an f yet, and none before sm_90 an a
        suffix = suffix if (suffix, number) == ("a", "90") else ""
    return f"{arch!r} is no architecture; did you mean sm_{number}{suffix or ('a' if int(number) >= 100 else '')}?"


def refusals(model: specs.Model, num_heads: int, arch: str) -> dict[str, str]:
    """Say of each backend why it compiles no kernel of the model for `arch`; empty where one does, in every format.

    Empty too where a backend that does not exist was forced, which warmup itself says.
    """
    if _backends.forced_by_environment() not in (None, *(backend.name for backend in _backends.backends())):
        return {}
    for fmt in model.formats:
        reasons = _reasons(_request(model, num_heads, fmt, arch))
        refused = {backend: reason for backend, reason in reasons.items() if reason is not None}
        if len(refused) == len(reasons):
            return refused
    return {}


def _request(model: specs.Model, num_heads: int, fmt: str, arch: str | None) -> _abi.Request:
    """A call of the model on the current device, or on one of `arch` that need not be here."""
    dtypes = (torch.int64, torch.float32, torch.bfloat16, torch.float32)
    (probe,) = _warmup._probes(
        _abi.OPS[_warmup.FORMATS[fmt]], (num_heads, model.head_dim, model.rope_dim), dtypes, model.spec,
        _warmup._device(None) if arch is None else torch.device("cpu"), (_requests.MAX_ALIGNMENT,),
    )  # fmt: skip
    return probe if arch is None else replace(probe, device_type="cuda", target=arch)


def _reasons(request: _abi.Request) -> dict[str, str | None]:
    """Say of each backend with kernels why it compiles none for the request; None where it does."""
    forced, workload = _backends.forced_by_environment(), _backends.workload_of(request)
    reasons: dict[str, str | None] = {}
    for backend in _backends.backends():
        if backend.name == "reference":
            continue
        if forced not in (None, backend.name):
            reasons[backend.name] = f"{forced!r} was forced"
        elif not backend.usable:
            reasons[backend.name] = str(backend.reason)
        elif backend.provider.warmup_jobs(workload):
            reasons[backend.name] = None
        else:
            reason = backend.provider.why_not(request)
            reasons[backend.name] = reason or f"it compiles for {request.target} only where there is such a GPU."
    return reasons


def counts() -> dict[str, int]:
    """Return how many kernels each backend has compiled or loaded in this process."""
    return {
        backend.name: int(backend.provider.compile_count()) if backend.usable else 0 for backend in _backends.backends()
    }


def report(model: str, num_heads: int, arch: str | None, compiled: int, before: dict[str, int]) -> Iterator[str]:
    """Yield lines: what each backend compiled since `counts()` gave `before`, and where; else why nothing."""
    shape = specs.MODELS[model]
    request = _request(shape, num_heads, shape.formats[0], arch)
    calls = f"{model} with {num_heads} heads on {request.target}"
    if compiled:
        yield f"{compiled} {'kernel' if compiled == 1 else 'kernels'} compiled or loaded for {calls}."
    else:
        yield f"Nothing to compile for {calls}."
    if compiled or arch is not None:
        yield from _by_backend(before, request)
        return
    taken = f"it takes these calls on {request.target}, and has nothing to compile."
    for verdict in _backends.verdicts(request, _backends.forced_by_environment()):
        yield f"  {verdict.backend.name}: {verdict.reason or taken}"
    if not torch.cuda.is_available():
        yield "PyTorch sees no GPU here. To fill the disk cache for one elsewhere: --arch, as --arch sm_90."


def _by_backend(before: dict[str, int], request: _abi.Request) -> Iterator[str]:
    """Yield a line a backend. The best that can has all its kernels; others compile what it leaves, if anything."""
    after, reasons, taken = counts(), _reasons(request), False
    for backend in _backends.backends():
        if backend.name not in reasons:
            continue
        number = after[backend.name] - before[backend.name]
        facts = backend.provider.environment() if backend.usable else {}
        folder = next((f", in {facts[name]}" for name in _FOLDERS if name in facts), "")
        if number:
            yield f"  {backend.name}: {number}{folder}"
        elif reasons[backend.name] is not None:
            yield f"  {backend.name}: {reasons[backend.name]}"
        elif taken:
            yield f"  {backend.name}: none, as another backend takes these calls"
        else:
            yield f"  {backend.name}: all of them already{folder}"
        taken = taken or reasons[backend.name] is None
