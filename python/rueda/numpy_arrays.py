"""The adapter for NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rueda import _native, dtypes
from rueda.adapter import Refusal, View, Views, unusable

__all__ = ["Array", "NumpyAdapter"]

Array = npt.NDArray[Any]


class NumpyAdapter:
    """Reads whatever :func:`numpy.asarray` accepts, or has ``__dlpack__`` and is in host memory.

    bfloat16 is the dtype of that name from ml_dtypes. Masked arrays are refused: an operation would use what is under
    the mask.
    """

    def read(self, array: object) -> tuple[Array, View]:
        try:
            _require_no_mask(array)
            source = _from_dlpack(array) if _only_has_dlpack(array) else np.asarray(array)
            if not source.flags.c_contiguous:
                source = source.copy(order="C")
            return source, _view(source)
        except Exception as error:  # from lists, other libraries' arrays, or __array__
            raise unusable(array, error) from None

    def write(self, array: object) -> tuple[Array, View]:
        if not isinstance(array, np.ndarray):
            raise Refusal(f"in place works on a numpy.ndarray, not on a {type(array).__name__}")
        _require_no_mask(array)
        if not array.flags.c_contiguous:
            raise Refusal(
                f"the array of shape {list(array.shape)} is not contiguous (strides {list(array.strides)} "
                f"bytes): use the operation that is not in place, or numpy.ascontiguousarray"
            )
        if not array.flags.writeable:
            raise Refusal(f"the array of shape {list(array.shape)} is read-only")
        return array, _view(array)

    def usual_views(self, arrays: Sequence[Array], to_write: bool) -> Views | None:
        codes = []
        for array in arrays:
            if type(array) is not np.ndarray:
                return None
            flags = array.flags
            code = _codes.get(array.dtype)
            if code is None or not flags.c_contiguous or (to_write and not flags.writeable):
                return None
            codes.append(code)
        return Views(
            [_native.address_of(array) for array in arrays],
            [array.shape for array in arrays],
            codes,
            [array.nbytes for array in arrays],
        )

    def are_unchanged(self, arrays: Sequence[Array], views: Views) -> bool:
        return [array.shape for array in arrays] == views.shapes and [
            _native.address_of(array) for array in arrays
        ] == views.pointers

    def change_of(self, array: Array, view: View) -> str | None:
        if array.shape != view.shape:
            return f"was resized from {list(view.shape)} to {list(array.shape)}"
        return None if _native.address_of(array) == view.pointer else "was given other memory"

    def empty_like(self, array: Array) -> Array:
        try:
            return np.empty(array.shape, array.dtype)
        except Exception as error:  # such as too little memory
            raise unusable(array, error) from None

    def copy(self, array: object) -> Array:
        try:
            _require_no_mask(array)
            source = _from_dlpack(array) if _only_has_dlpack(array) else array
            return np.array(source, order="C", subok=False)
        except Exception as error:
            raise unusable(array, error) from None

    def from_memory(self, memory: _native.Memory, shape: list[int], like: Array) -> Array:
        if len(memory) == 0:
            return np.empty(shape, like.dtype)
        array: Array = np.ndarray(shape, like.dtype, buffer=memoryview(memory))
        return array

    def from_integers(self, values: list[int]) -> Array:
        return np.array(values, np.int64)


def _require_no_mask(array: object) -> None:
    """Raises Refusal for a :class:`numpy.ma.MaskedArray` and its like, whose mask :func:`numpy.asarray` drops."""
    if type(array) is np.ndarray or not isinstance(array, np.ndarray):
        return
    if hasattr(array, "mask") and hasattr(array, "filled"):
        raise Refusal(
            f"a {type(array).__name__} has a mask, which would be lost: pass array.filled(value), with what is to "
            "count where it is masked, and reduce the mask as an array of its own if needed"
        )


def _only_has_dlpack(array: object) -> bool:
    return hasattr(array, "__dlpack__") and not hasattr(array, "__array__")


def _from_dlpack(array: Any) -> Array:
    """Without a copy. Raises Refusal for arrays on another device or with a dtype that NumPy lacks."""
    try:
        return np.from_dlpack(array)
    except Exception as error:
        raise Refusal(f"numpy.from_dlpack() of a {type(array).__name__} failed: {error}") from error


# Numbers of the element types seen so far: computing a dtype's name takes longer than many reductions.
_codes: dict[np.dtype[Any], int] = {}


def _view(array: Array) -> View:
    code = _codes.get(array.dtype)
    if code is None:
        code = _codes[array.dtype] = _code_of(array.dtype)
    return View(_native.address_of(array), array.shape, code)


def _code_of(dtype: np.dtype[Any]) -> int:
    code = dtypes.code_of(dtype.name)
    if code is None or not dtype.isnative:
        order = "" if dtype.isnative else " in foreign byte order"
        raise Refusal(
            f"the dtype {dtype.name}{order} is not supported; there are {', '.join(dtypes.names())}",
            unsupported=True,
        )
    return code
