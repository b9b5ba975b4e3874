"""Arrays in memory that the ranks of a host can share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rueda import _native
from rueda.errors import UnsupportedError
from rueda.numpy_arrays import Array

__all__ = ["empty"]


def empty(shape: int | Sequence[int], dtype: npt.DTypeLike = np.float64) -> Array:
    """A contiguous array of zeros in memory that the other ranks on the host can access without a copy.

    It is used like any other array and freed with its last view. ``dtype`` defaults to float64, as in NumPy. Also works
    before :func:`rueda.init`, and stays valid after :func:`rueda.shutdown`. If the system provides no such memory, or
    not enough, it is an ordinary array. A forked child process sees the parent's contents; what it writes is its own.
    Raises ``MemoryError``, also beyond the limit of this process's control group (a container, a Slurm job), where the
    kernel would kill the process; ``ValueError`` for a negative extent; and :class:`rueda.UnsupportedError` for a dtype
    with Python objects.

    Example::

        >>> gradients = rueda.empty((1000, 10), np.float32)
        >>> rueda.allreduce_(gradients, name="gradients").shape
        (1000, 10)
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(extent < 0 for extent in extents):
        raise ValueError(f"negative extent in shape {extents}")
    element = np.dtype(dtype)
    if element.hasobject:
        raise UnsupportedError(
            f"empty() of dtype {element}: memory that other processes access cannot hold Python objects"
        )
    size = math.prod(extents) * element.itemsize
    if size == 0:
        return np.empty(extents, element)
    array: Array = np.ndarray(extents, element, buffer=memoryview(_native.allocate(size)))
    return array
