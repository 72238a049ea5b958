"""What is installed and what would run: the facts behind `iq-ops doctor`. Every probe is guarded; none may raise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import _abi
from ._version import __version__

VARIABLES = {
    "IQ_OPS_BACKEND": "forces one backend",
    "IQ_OPS_CHECK": "1 checks the values of every call",
    "IQ_KERNELS_CACHE_DIR": "folder of the compiled kernels",
    "IQ_KERNELS_CACHE": "0 turns the kernel cache off",
    "XDG_CACHE_HOME": "parent of the kernel cache folder",
    "CUDA_VISIBLE_DEVICES": "GPUs that this process may see",
    "TRITON_INTERPRET": "1 runs Triton kernels on the CPU, slowly",
    "TRITON_CACHE_DIR": "folder of the compiled Triton kernels",
    "CUTE_DSL_ARCH": "overrides the architecture that CuTeDSL compiles for",
    "IQ_REQUIRE_GPU": "1 makes a skipped GPU test a failure",
}


def report() -> dict[str, Any]:
    """Return everything as data that json can write. A probe that fails leaves {"error": why} in its place.

    Keys: iq_ops, python, torch, driver, devices, backends, calls (what a DeepSeek-V4 call takes on each device),
    cache, environment, problems (sentences, each with what to do; empty where nothing is wrong).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a broken backend warns at discovery, and is reported here in full
        found: dict[str, Any] = {
            "iq_ops": {"version": __version__, "location": str(Path(__file__).parent)},
            "python": _guarded(_python),
            "torch": _guarded(_torch),
            "driver": _guarded(_driver),
            "devices": _guarded(_devices),
            "backends": _guarded(_backends),
            "calls": _guarded(_calls),
            "cache": _guarded(_cache),
            "environment": _guarded(_environment),
        }
        found["problems"] = _guarded(lambda: _problems(found))
    return found


def _guarded(probe: Callable[[], Any]) -> Any:
    try:
        return probe()
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _python() -> dict[str, str]:
    return {"version": platform.python_version(), "executable": sys.executable, "platform": platform.platform()}


def _torch() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cuda_available": torch.cuda.is_available(),
    }


def _driver() -> str | None:
    """The NVIDIA driver's version; None where there is no driver."""
    if not any(os.access(Path(folder, "nvidia-smi"), os.X_OK) for folder in os.get_exec_path()):
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    return lines[0].strip() if lines else None


def _devices() -> list[dict[str, Any]]:
    import torch

    from ._requests import target_of

    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "index": index,
                "name": properties.name,
                "target": target_of("cuda", index),
                "memory_gib": round(properties.total_memory / 2**30, 1),
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def _backends() -> list[dict[str, Any]]:
    from . import _backends as registry

    return [
        {
            "name": backend.name,
            "distribution": backend.distribution,
            "version": backend.version,
            "preference": backend.preference,
            "state": backend.state,
            "reason": backend.reason,
            "abi": dict(backend.abi),
            "environment": _guarded(lambda backend=backend: _provider_environment(backend)),  # type: ignore[misc]
        }
        for backend in registry.backends()
    ]


def _provider_environment(backend: Any) -> dict[str, str]:
    if not backend.usable:
        return {}
    return {str(key): str(value) for key, value in backend.provider.environment().items()}


def _calls() -> list[dict[str, Any]]:
    """What a DeepSeek-V4 call takes on the CPU and on each GPU, and what every other backend said."""
    import torch

    places: list[tuple[str, int | None]] = [("cpu", None)]
    places += [("cuda", index) for index in range(torch.cuda.device_count())]
    return [
        {
            "device": device if index is None else f"{device}:{index}",
            "format": op.removeprefix("indexer_q_"),
            **_guarded(lambda op=op, device=device, index=index: _answers(op, device, index)),  # type: ignore[misc]
        }
        for device, index in places
        for op in _abi.OPS
    ]


def _answers(op: str, device_type: str, index: int | None) -> dict[str, Any]:
    from . import _backends as registry
    from . import _requests

    request = _abi.Request(
        op, device_type, index, _requests.target_of(device_type, index), _v4_facts(op), "interleaved", "tail", False
    )
    answers = registry.verdicts(request, registry.forced_by_environment())
    takes = next((answer.backend.name for answer in answers if answer.reason is None), None)
    return {"takes": takes, "refused": {a.backend.name: a.reason for a in answers if a.reason is not None}}


def _v4_facts(op: str) -> Mapping[str, _abi.TensorFacts]:
    """A call of 512 tokens in the shapes of DeepSeek-V4."""
    sizes = {"T": 512, "H": 64, "D": 128, "R": 64, "P": 65536, "D/2": 64, "D/32": 4}
    facts = {}
    for tensor in _abi.OPS[op].tensors:
        shape = tuple(sizes[symbol] for symbol in tensor.shape)
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        dtype = "int64" if tensor.name == "positions" else tensor.dtypes[0]
        facts[tensor.name] = _abi.TensorFacts(dtype, shape, tuple(strides), 256)
    return facts


def _cache() -> dict[str, Any]:
    """The folder that the compiled kernels are kept in, by the rule that the kernel packages share."""
    parent = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("IQ_KERNELS_CACHE_DIR") or Path(parent, "iq-kernels")).expanduser()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return {
        "folder": str(folder),
        "enabled": os.environ.get("IQ_KERNELS_CACHE") != "0",
        "exists": folder.is_dir(),
        "writable": nearest.is_dir() and os.access(nearest, os.W_OK),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def _problems(found: Mapping[str, Any]) -> list[str]:
    problems = [
        f"The probe of {name} failed: {value['error']}"
        for name, value in found.items()
        if isinstance(value, dict) and "error" in value
    ]
    backends = found["backends"] if isinstance(found["backends"], list) else []
    problems += [
        f"Backend {backend['name']!r} is {backend['state']}: {backend['reason']}"
        for backend in backends
        if backend["state"] in ("broken", "skewed")
    ]
    forced = os.environ.get("IQ_OPS_BACKEND")
    names = [backend["name"] for backend in backends]
    if forced and forced not in names:
        problems.append(f"IQ_OPS_BACKEND={forced} names no backend. Set it to one of {', '.join(names)}, or unset it.")
    check = os.environ.get("IQ_OPS_CHECK", "")
    if check not in ("", "0", "1"):
        problems.append(f"IQ_OPS_CHECK={check} has no effect: set it to 1 to check the values of every call.")
    for call in found["calls"] if isinstance(found["calls"], list) else []:
        if "error" in call:
            problems.append(f"Asking who takes {call['format']} on {call['device']} failed: {call['error']}")
        elif call["takes"] is None and forced in names:
            why = call["refused"].get(forced)
            problems.append(f"IQ_OPS_BACKEND={forced} cannot run {call['format']} on {call['device']}: {why}")
        elif call["takes"] is None and not forced:
            problems.append(f"Nothing can run {call['format']} on {call['device']}: each backend says why above.")
        elif call["takes"] == "reference" and call["device"] != "cpu" and forced != "reference":
            problems.append(f"{call['format']} on {call['device']} falls to the slow reference: no kernel takes it.")
    cache = found["cache"]
    if isinstance(cache, dict) and cache.get("enabled") and cache.get("writable") is False:
        problems.append(f"{cache['folder']} is not writable: set IQ_KERNELS_CACHE_DIR to a folder that is.")
    return problems
