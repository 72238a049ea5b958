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
    if re.fullmatch(r"sm_\d{2,3}[af]?|gfx[0-9a-f]{3,4}", arch):
        return None
    meant = re.fullmatch(r"(?:sm|compute)?[-_. ]?(\d{2,3})([af]?)", arch.lower())
    if meant is None:
        return f"{arch!r} is no architecture: give one as sm_90, sm_100a or gfx950"
    number, suffix = meant.groups()
    return f"{arch!r} is no architecture; did you mean sm_{number}{suffix or ('a' if int(number) >= 100 else '')}?"


def refusals(model: specs.Model, num_heads: int, arch: str) -> dict[str, str]:
    """Say of each backend why it compiles no kernel of the model for `arch`; empty where one does, in every format."""
    forced = _backends.forced_by_environment()
    for fmt in model.formats:
        dtypes = (torch.int64, torch.float32, torch.bfloat16, torch.float32)
        (probe,) = _warmup._probes(
            _abi.OPS[_warmup.FORMATS[fmt]], (num_heads, model.head_dim, model.rope_dim), dtypes, model.spec,
            torch.device("cpu"), (_requests.MAX_ALIGNMENT,),
        )  # fmt: skip
        request = replace(probe, device_type="cuda", target=arch)
        workload, reasons = _backends.workload_of(request), {}
        for backend in _backends.backends():
            if backend.name == "reference":
                continue
            if forced not in (None, backend.name):
                reasons[backend.name] = f"{forced!r} was forced"
            elif not backend.usable:
                reasons[backend.name] = str(backend.reason)
            elif backend.provider.warmup_jobs(workload):
                break
            else:
                reason = backend.provider.why_not(request)
                reasons[backend.name] = reason or f"it compiles for {arch} only where there is such a GPU."
        else:
            return reasons
    return {}


def counts() -> dict[str, int]:
    """Return how many kernels each backend has compiled or loaded in this process."""
    return {
        backend.name: int(backend.provider.compile_count()) if backend.usable else 0 for backend in _backends.backends()
    }


def report(model: str, num_heads: int, arch: str | None, compiled: int, before: dict[str, int]) -> Iterator[str]:
    """Yield lines: what each backend compiled since `counts()` gave `before`, and where; else why nothing."""
    calls = f"{model} with {num_heads} heads on {arch or _target()}"
    if compiled:
        yield f"{compiled} {'kernel' if compiled == 1 else 'kernels'} compiled or loaded for {calls}."
        yield from _by_backend(before)
        return
    yield f"Nothing to compile for {calls}."
    if arch is None:
        shape = specs.MODELS[model]
        reasons = _warmup.why_nothing(num_heads, shape.head_dim, shape.rope_dim, shape.formats[0], shape.spec)
        yield from (f"  {backend}: {reason}" for backend, reason in reasons.items())
        if not torch.cuda.is_available():
            yield "PyTorch sees no GPU here. To fill the disk cache for one elsewhere: --arch, as --arch sm_90."


def _by_backend(before: dict[str, int]) -> Iterator[str]:
    after = counts()
    for backend in _backends.backends():
        number = after[backend.name] - before[backend.name]
        if number:
            facts = backend.provider.environment()
            folder = next((f", in {facts[name]}" for name in _FOLDERS if name in facts), "")
            yield f"  {backend.name}: {number}{folder}"
        elif backend.name != "reference":
            yield f"  {backend.name}: {backend.reason or 'none, as another backend takes these calls'}"


def _target() -> str:
    if torch.cuda.is_available():
        return _requests.target_of("cuda", torch.cuda.current_device())
    return "cpu"
