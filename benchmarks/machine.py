"""What a report says of the machine: GPU, driver, clocks, and the versions that make the code fast or slow."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from typing import Any

PACKAGES = ("torch", "triton", "nvidia-cutlass-dsl", "apache-tvm-ffi", "iq-ops", "iq-kernels-triton", "iq-kernels-cute")
FIELDS = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit")


def describe() -> dict[str, Any]:
    """Describe this machine: `gpu` is None without one; a package that is not installed is left out."""
    return {"gpu": _gpu(), "versions": {name: version for name in PACKAGES if (version := _version(name))}}


def slug(gpu_name: str) -> str:
    """Turn a GPU's name into its folder below baselines/: "NVIDIA H200" is nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> dict[str, Any] | None:
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        **_nvidia_smi(),
    }


def _nvidia_smi() -> dict[str, str]:
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return {"nvidia_smi": f"no answer: {error}"}
    return dict(zip(FIELDS[1:], (value.strip() for value in line.splitlines()[0].split(",")[1:]), strict=True))
