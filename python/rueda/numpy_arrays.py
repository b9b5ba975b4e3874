"""NumPy arrays as Rueda sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rueda import _native, dtypes
from rueda.adapter import Refusal, View

__all__ = ["Array", "NumpyAdapter"]

Array = npt.NDArray[Any]


class NumpyAdapter:
    """Reads whatever :func:`numpy.asarray` accepts; bfloat16 is the dtype of that name of ml_dtypes."""

    def read(self, array: object) -> tuple[Array, View]:
        source = np.asarray(array)
        if not source.flags.c_contiguous:
            source = source.copy(order="C")
        return source, _view(source)

    def write(self, array: object) -> tuple[Array, View]:
        if not isinstance(array, np.ndarray):
            raise Refusal(f"in place works on a numpy.ndarray, not on a {type(array).__name__}")
        if not array.flags.c_contiguous:
            raise Refusal(
                f"the array of shape {list(array.shape)} is not contiguous (strides {list(array.strides)} "
                f"bytes): use the operation that is not in place, or numpy.ascontiguousarray"
            )
        if not array.flags.writeable:
            raise Refusal(f"the array of shape {list(array.shape)} is read-only")
        return array, _view(array)

    def empty_like(self, array: Array) -> Array:
        return np.empty(array.shape, array.dtype)

    def copy(self, array: object) -> Array:
        return np.array(array, order="C", subok=False)

    def from_memory(self, memory: _native.Memory, shape: list[int], like: Array) -> Array:
        if len(memory) == 0:
            return np.empty(shape, like.dtype)
        array: Array = np.ndarray(shape, like.dtype, buffer=memoryview(memory))
        return array

    def from_integers(self, values: list[int]) -> Array:
        return np.array(values, np.int64)


def _view(array: Array) -> View:
    code = dtypes.code_of(array.dtype.name)
    if code is None or not array.dtype.isnative:
        order = "" if array.dtype.isnative else " in foreign byte order"
        raise Refusal(
            f"the dtype {array.dtype.name}{order} is not supported; there are {', '.join(dtypes.names())}",
            unsupported=True,
        )
    return View(array.__array_interface__["data"][0], list(array.shape), code)
