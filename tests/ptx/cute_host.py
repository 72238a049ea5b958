"""Run the host launcher that CuTeDSL compiled, on this machine's CPU, with the CUDA driver replaced by a recorder.

Grid, block and parameters are whatever the launcher computes: its native code runs as it would in production, from the
TVM-FFI argument checks to the launch call, but `_cudaLaunchKernelEx` and its siblings are functions of this module. So
nothing about a launch is written down a second time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .dlpack import DeviceTensor
from .launch import Launch
from .placement import Placed
from .syntax import Kernel

# cudaLaunchAttributeProgrammaticStreamSerialization of the CUDA runtime's cudaLaunchAttributeID
_DEPENDENT_LAUNCH = 6

# The driver calls a launcher makes besides the launch, with their number of arguments. All succeed and do nothing.
_IGNORED = {
    "cuda_dialect_init_library_once": 4,
    "cuda_dialect_unload_library_once": 1,
    "_cudaGetDevice": 1,
    "_cudaSetDevice": 1,
    "_cudaLibraryLoadData": 8,
    "_cudaLibraryGetKernel": 3,
    "_cudaDeviceGetAttribute": 3,
    "_cuKernelGetAttribute": 4,
    "_cudaFuncSetAttribute": 3,
    "_cudaKernelSetAttributeForDevice": 4,
}


class _Attribute(ctypes.Structure):
    """cudaLaunchAttribute of the CUDA runtime: an id, padding, a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int32), ("padding", ctypes.c_char * 4), ("value", ctypes.c_int32 * 16))


class _Config(ctypes.Structure):
    """cudaLaunchConfig_t of the CUDA runtime."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint32),
    )


class HostLauncher:
    """The launcher of a function that `cute.compile` made with --enable-tvm-ffi."""

    def __init__(self, compiled: Any, kernel: Kernel) -> None:
        import tvm_ffi
        from cutlass._mlir.execution_engine import ExecutionEngine
        from cutlass.base_dsl.env_manager import get_prefix_dsl_libs

        self._kernel = kernel
        self._launches: list[Launch] = []
        libraries = [name for name in get_prefix_dsl_libs("CUTE_DSL").split(":") if name]
        self._engine = ExecutionEngine(compiled.ir_module, opt_level=0, shared_libs=libraries)
        self._callbacks = [self._define("_cudaLaunchKernelEx", 3, self._record)]
        for name, count in _IGNORED.items():
            self._callbacks.append(self._define(name, count, lambda *_: 0))
        # The engine calls functions through a packed form: an array of pointers to the arguments, then to the result.
        packed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._engine.raw_lookup(f"__tvm_ffi_{compiled.function_name}"))

        def call(handle: int, arguments: int, count: int, returned: int) -> int:
            status = ctypes.c_int32()
            values = (
                ctypes.c_void_p(handle),
                ctypes.c_void_p(arguments),
                ctypes.c_int32(count),
                ctypes.c_void_p(returned),
                status,
            )
            packed((ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values)))
            return status.value

        safe_call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
        self._entry = safe_call(call)
        address = ctypes.cast(self._entry, ctypes.c_void_p).value or 0
        self._function = tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=self)
        self._from_dlpack = tvm_ffi.from_dlpack

    def __call__(self, *arguments: Placed | float) -> list[Launch]:
        """Call the launcher as production code would; the launches it made. Its own errors pass through."""
        self._launches = []
        described = [DeviceTensor(value) if isinstance(value, Placed) else value for value in arguments]
        self._function(*(self._from_dlpack(v) if isinstance(v, DeviceTensor) else v for v in described))
        return self._launches

    def _define(self, name: str, count: int, function: Callable[..., int]) -> Any:
        callback = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * count)(function)
        self._engine.raw_register_runtime(name, ctypes.cast(callback, ctypes.c_void_p))
        return callback

    def _record(self, config_address: int, function: int, parameters: int) -> int:
        config = _Config.from_address(config_address)
        pointers = (ctypes.c_void_p * len(self._kernel.parameters)).from_address(parameters)
        block = bytearray(self._kernel.parameter_bytes)
        for parameter, pointer in zip(self._kernel.parameters, pointers, strict=True):
            block[parameter.offset : parameter.offset + parameter.size] = ctypes.string_at(pointer, parameter.size)
        attributes = [config.attributes[i] for i in range(config.attribute_count)]
        dependent = any(each.id == _DEPENDENT_LAUNCH and each.value[0] for each in attributes)
        x, y, z = config.grid
        width, height, depth = config.block
        launch = Launch((x, y, z), (width, height, depth), bytes(block), int(config.dynamic_shared), dependent)
        self._launches.append(launch)
        return 0
