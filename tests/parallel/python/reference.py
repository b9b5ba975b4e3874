"""The collectives' expected results in NumPy, and inputs that every rank can compute for all."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import rueda

try:
    import ml_dtypes

    _brain: list[np.dtype[Any]] = [np.dtype(ml_dtypes.bfloat16)]
except ImportError:  # NumPy alone has no bfloat16; rueda.torch's checks cover it
    _brain = []

Array = npt.NDArray[Any]

DTYPES = [
    *map(np.dtype, ("float16", "float32", "float64")),
    *_brain,
    *map(np.dtype, ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")),
    *map(np.dtype, ("bool", "complex64", "complex128")),
]

_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "complex64": 2.0**-23}


def is_exact(dtype: np.dtype[Any]) -> bool:
    """Integers and Booleans."""
    return dtype.kind in "iub"


def is_complex(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "c"


def is_defined(op: rueda.ReduceOp, dtype: np.dtype[Any]) -> bool:
    """Whether the reduction is defined for the dtype."""
    if op in (rueda.BitAnd, rueda.BitOr, rueda.BitXor):
        return is_exact(dtype)
    if op in (rueda.Min, rueda.Max):
        return not is_complex(dtype)
    return not (op == rueda.Average and dtype.kind == "b")


def values(name: str, rank: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """The rank's input to operation ``name``: random, too small for integers to overflow."""
    random = np.random.default_rng([zlib.crc32(name.encode()), rank])
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape)).astype(dtype)
    if dtype.kind == "u":
        return np.asarray(random.integers(0, 4, shape)).astype(dtype)
    if dtype.kind == "i":
        return np.asarray(random.integers(-3, 4, shape)).astype(dtype)
    if is_complex(dtype):
        numbers = random.standard_normal(shape) + 1j * random.standard_normal(shape)
        return np.asarray(numbers).astype(dtype)
    return np.asarray(random.standard_normal(shape)).astype(dtype)


def reduced(op: rueda.ReduceOp, inputs: Sequence[Array]) -> Array:
    """The reduction over ranks; floating-point numbers in double precision."""
    dtype = inputs[0].dtype
    wide = inputs if is_exact(dtype) else [_wide(x) for x in inputs]
    stacked = np.stack(wide)
    if dtype.kind == "b":
        every = op in (rueda.Product, rueda.Min, rueda.BitAnd)
        if op == rueda.BitXor:
            return np.logical_xor.reduce(stacked)
        return stacked.all(axis=0) if every else stacked.any(axis=0)
    if op == rueda.Sum:
        return stacked.sum(axis=0, dtype=stacked.dtype)
    if op == rueda.Average:
        total = stacked.sum(axis=0, dtype=stacked.dtype)
        return total // len(inputs) if is_exact(dtype) else total / len(inputs)
    functions = {
        rueda.Min: np.minimum,
        rueda.Max: np.maximum,
        rueda.Product: np.multiply,
        rueda.BitAnd: np.bitwise_and,
        rueda.BitOr: np.bitwise_or,
        rueda.BitXor: np.bitwise_xor,
    }
    result: Array = functions[op].reduce(stacked, axis=0, dtype=stacked.dtype)
    return result


def assert_reduced(name: str, actual: Array, op: rueda.ReduceOp, inputs: Sequence[Array]) -> None:
    """Requires that ``actual`` is the reduction of ``inputs``, exactly or to within rounding.

    A sum of n numbers with n-1 roundings is off by at most (n-1)·eps·Σ|x|, a product by
    (n-1)·eps·Π|x| (complex: a few times that); an average and a conversion add one rounding each.
    The limit is 4·n·eps.
    """
    expected = reduced(op, inputs)
    assert actual.dtype == inputs[0].dtype, (name, actual.dtype)
    assert actual.shape == inputs[0].shape, (name, actual.shape)
    if is_exact(actual.dtype) or op in (rueda.Min, rueda.Max):
        np.testing.assert_array_equal(_comparable(actual), expected, err_msg=name)
        return
    magnitudes = np.stack([np.abs(_wide(x)) for x in inputs])
    bound = magnitudes.prod(axis=0) if op == rueda.Product else magnitudes.sum(axis=0)
    epsilon = _EPSILON.get(actual.dtype.name, 2.0**-52)
    tolerance = 4 * len(inputs) * epsilon * bound + 1e-7 * (actual.dtype.name == "float16")
    error = np.abs(_wide(actual) - expected)
    assert np.all(error <= tolerance), (name, float((error - tolerance).max()))


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if is_complex(x.dtype) else np.float64)


def _comparable(x: Array) -> Array:
    return x if is_exact(x.dtype) else _wide(x)
