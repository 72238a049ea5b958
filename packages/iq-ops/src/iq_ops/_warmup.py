"""`warmup` compiles, before serving, every kernel that calls of a shape can take; `compile_count` counts compiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from . import _abi, _backends, _checks, _requests
from .specs import DEEPSEEK_V4, IndexerQSpec, check_spec

ODD_ALIGNMENT = 2  # bytes: of a view that begins at an odd element of q
FORMATS = {"fp8": "indexer_q_fp8", "mxfp4": "indexer_q_mxfp4"}


def warmup(
    num_heads: int = 64,
    head_dim: int = 128,
    rope_dim: int = 64,
    formats: Sequence[str] = ("fp8", "mxfp4"),
    *,
    spec: IndexerQSpec = DEEPSEEK_V4,
    positions_dtypes: Sequence[torch.dtype] = (torch.int64,),
    cache_dtypes: Sequence[torch.dtype] = (torch.float32,),
    weights_dtypes: Sequence[torch.dtype] = (torch.bfloat16,),
    weights_out_dtypes: Sequence[torch.dtype] = (torch.float32,),
    device: torch.device | str | int | None = None,
    arch: str | None = None,
    backend: str | None = None,
    progress: bool = False,
) -> int:
    """Compile now what calls of these shapes and dtypes would compile later, at any T; return how many kernels.

    num_heads is what one rank holds. device: None is the current GPU, or the CPU where there is none. What is warmed
    is the backend that such calls take, or the one named. arch: compile for this architecture instead, as "sm_100a",
    into the disk cache, where no such GPU need be. progress: a bar on stderr. A second call compiles nothing.

    Raises ValueError or TypeError for what no call can have, BackendUnavailableError for a named backend that cannot
    run the calls, and the provider's CompileError where a backend that was named fails to compile.
    """
    if isinstance(formats, str):
        remedy = f"pass formats=({formats!r},)."
        raise ValueError(_checks.describe_mismatch("formats", "a tuple of names", f"the string {formats!r}", remedy))
    unknown = [fmt for fmt in formats if fmt not in FORMATS]
    if unknown:
        expected, remedy = " or ".join(map(repr, FORMATS)), "pass a tuple of these names."
        raise ValueError(_checks.describe_mismatch("formats", expected, repr(unknown[0]), remedy))
    check_spec(spec)
    _checks.check_sizes(
        {"H": num_heads, "D": head_dim, "R": rope_dim}, {"H": "num_heads", "D": "head_dim", "R": "rope_dim"}
    )
    _check_dtypes("positions", positions_dtypes)
    _check_dtypes("cos_sin_cache", cache_dtypes)
    _check_dtypes("weights", weights_dtypes)
    _check_dtypes("weights_out", weights_out_dtypes)
    target = _device(device)
    forced = backend or _backends.forced_by_environment()
    alignments = (_requests.MAX_ALIGNMENT,) if forced else (_requests.MAX_ALIGNMENT, ODD_ALIGNMENT)
    requests = [
        request
        for fmt, *dtypes in itertools.product(
            formats, positions_dtypes, cache_dtypes, weights_dtypes, weights_out_dtypes
        )
        for request in _probes(
            _abi.OPS[FORMATS[fmt]], (num_heads, head_dim, rope_dim), dtypes, spec, target, alignments
        )
    ]
    before = compile_count()
    for request in _with_bar(requests) if progress else requests:
        if arch is None:
            _compile(request, forced)
        else:
            _compile_ahead(replace(_backends.workload_of(request), target=arch, device_index=None), forced)
    return compile_count() - before


def compile_count() -> int:
    """Return how many kernels all backends have compiled, or loaded from their caches, in this process."""
    return sum(backend.provider.compile_count() for backend in _backends.backends() if backend.usable)


def _compile(request: _abi.Request, forced: str | None) -> None:
    """Warm the backend that would take the request; where it fails to compile, the next, as a call would."""
    workload = _backends.workload_of(request)

    def compile_all(backend: _backends.Backend, raw: Callable[..., None], passed_over: Sequence[str]) -> None:
        for _label, compile_one in backend.provider.warmup_jobs(workload):
            compile_one()

    _backends.run_first(request, forced, compile_all)


def _compile_ahead(workload: _abi.Workload, forced: str | None) -> None:
    """Warm the best backend that compiles for a device that is not here."""
    if forced not in (None, *(backend.name for backend in _backends.backends())):
        raise _backends.BackendUnavailableError(_backends.unknown_backend(str(forced)))
    reasons = []
    for backend in _backends.backends():
        if forced not in (None, backend.name):
            continue
        jobs = backend.provider.warmup_jobs(workload) if backend.usable else []
        for _label, compile_one in jobs:
            compile_one()
        if jobs:
            return
        reasons.append(f"{backend.name}: {backend.reason or f'it has no kernel to compile for {workload.target}'}")
    raise _backends.BackendUnavailableError(
        f"no backend compiles {workload.op} for {workload.target} ahead: {'; '.join(reasons) or forced}"
    )


def _probes(
    op: _abi.Op,
    shape: tuple[int, int, int],
    dtypes: Sequence[torch.dtype],
    spec: IndexerQSpec,
    device: torch.device,
    alignments: Sequence[int],
) -> list[_abi.Request]:
    """One request for each alignment of the inputs: another backend may take views at an odd element, and is warmed."""
    sizes = {"T": 16, "P": 16, **dict(zip("HDR", shape, strict=True))}
    positions, cache, weights, weights_out = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    input_dtypes = {"positions": positions, "q": "bfloat16", "cos_sin_cache": cache, "weights": weights}
    requests = []
    for alignment in alignments:
        facts = {
            name: _requests.contiguous_facts(dtype, tuple(sizes[symbol] for symbol in op.tensor(name).shape), alignment)
            for name, dtype in input_dtypes.items()
        }
        facts.update(_requests.output_facts(op, facts, weights_out))
        requests.append(_requests.request_of(op.name, facts, device, spec.rope_style, spec.rope_at, spec.hadamard))
    return requests


def _check_dtypes(tensor: str, dtypes: Sequence[torch.dtype]) -> None:
    """Raise TypeError for a dtype that the contract does not give the tensor."""
    allowed = tuple(getattr(torch, name) for name in _abi.OPS["indexer_q_fp8"].tensor(tensor).dtypes)
    if isinstance(dtypes, torch.dtype):
        name, remedy = f"{tensor.removeprefix('cos_sin_')}_dtypes", "put it into a tuple."
        raise TypeError(_checks.describe_mismatch(name, "a sequence of dtypes", repr(dtypes), remedy))
    for dtype in dtypes:
        if dtype not in allowed:
            expected, remedy = " or ".join(map(str, allowed)), f"warm the dtypes that {tensor} will have."
            name = f"{tensor.removeprefix('cos_sin_')}_dtypes"
            raise TypeError(_checks.describe_mismatch(name, expected, repr(dtype), remedy))


def _device(device: torch.device | str | int | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    index = torch.device(device).index
    if torch.device(device).type == "cuda":
        if not torch.cuda.is_available():
            remedy = "leave it out on this machine, or pass arch= to compile for a GPU that is elsewhere."
            raise ValueError(_checks.describe_mismatch("device", "a device of this machine", repr(device), remedy))
        return torch.device("cuda", torch.cuda.current_device() if index is None else index)
    return torch.device(device)


def _with_bar(requests: Sequence[_abi.Request]) -> Iterable[_abi.Request]:
    from rich.console import Console
    from rich.progress import track

    return track(requests, description="Compiling kernels", console=Console(stderr=True))
