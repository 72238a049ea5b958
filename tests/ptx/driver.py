"""Run a kernel's cubin through the CUDA driver with a given parameter block. Needs a GPU."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch

from .launch import Launch
from .syntax import Kernel

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


def launch(cubin: bytes, kernel: Kernel, made: Launch) -> None:
    """Load `cubin`, launch its `kernel` as `made` says on the current device, and wait.

    RuntimeError carries the driver's error. PTX is not loaded: the compilers' is often newer than the driver reads.
    """
    driver = _driver()
    torch.cuda.init()
    torch.cuda.synchronize()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), cubin), "cuModuleLoadData")
    try:
        _check(driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.name.encode()), "cuModuleGetFunction")
        status = driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, made.dynamic_shared)
        _check(status, "cuFuncSetAttribute")
        block = ctypes.create_string_buffer(made.parameters, max(1, len(made.parameters)))
        addresses = [ctypes.addressof(block) + parameter.offset for parameter in kernel.parameters]
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        status = driver.cuLaunchKernel(function, *made.grid, *made.block, made.dynamic_shared, None, pointers, None)
        _check(status, "cuLaunchKernel")
        _check(driver.cuCtxSynchronize(), "cuCtxSynchronize")
    finally:
        driver.cuModuleUnload(module)


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"{what}: error {status}, {(text.value or b'unknown').decode()}")
