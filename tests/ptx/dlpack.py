"""Tensors that claim to live on a CUDA device: an address, a shape and strides, handed over by the DLPack protocol.

The compiled launcher of a kernel reads nothing but this description, so it runs on a machine without a GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .placement import Placed

CUDA = 2  # kDLCUDA
_CODES = {torch.int32: 0, torch.int64: 0, torch.uint8: 1, torch.float32: 2, torch.float16: 2, torch.bfloat16: 4}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class DeviceTensor:
    """A placed tensor seen through DLPack, on CUDA device 0. It must outlive whatever was made of it."""

    def __init__(self, placed: Placed) -> None:
        tensor = placed.tensor
        rank = tensor.dim()
        self._shape = (ctypes.c_int64 * rank)(*tensor.shape)
        self._strides = (ctypes.c_int64 * rank)(*tensor.stride())
        kind = _DataType(_CODES[tensor.dtype], 8 * tensor.element_size(), 1)
        described = _Tensor(placed.address, _Device(CUDA, 0), rank, kind, self._shape, self._strides, 0)
        self._managed = _Managed(described, None, None)  # no deleter: this object owns the description

    def __dlpack__(self, **_: Any) -> Any:
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, 0)
