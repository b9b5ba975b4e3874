"""Collectives that reduce NumPy arrays: allreduce and reducescatter.

Common to all collectives: ``name`` matches the operation across ranks; unnamed ones are matched by their number within
the process set, so every rank must submit those in the same order. ``process_set`` is the set of ranks that take part,
all of which must call; by default all ranks. A function with ``_async`` returns a :class:`rueda.Handle` immediately;
a trailing underscore means in place. If ranks disagree or one of them cannot take part, every rank raises the same
error.

Do not give an array another shape before asking for its handle's result. Otherwise that raises
:class:`rueda.InvalidArgumentError`, on this rank only, as no other can know; the others' results are correct.
NumPy refuses to resize an array that a handle holds, except by ``array.resize(..., refcheck=False)``: that frees memory
which the operation goes on using, so the process may crash, or other arrays get wrong values without an error.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from rueda import _native
from rueda.adapter import unusable
from rueda.compression import Codec
from rueda.handles import Handle
from rueda.numpy_arrays import Array, NumpyAdapter
from rueda.operations import Average, ReduceOp
from rueda.process_sets import (
    ProcessSet,
    arrival,
    global_process_set,
    require_process_set,
)
from rueda.submission import Collectives, refuse

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "reducescatter",
    "reducescatter_async",
]

_collectives = Collectives(NumpyAdapter())


def allreduce(
    array: npt.ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
) -> Array:
    """Reduces ``array`` element by element over the ranks; every rank gets the same bits.

    ``array``: any shape, the same on every rank; copied first if not contiguous. Its dtype: float16, bfloat16 (from
    ml_dtypes), float32, float64, int8 to int64, uint8 to uint64, bool, complex64 or complex128.
    ``name``: matches the operation across ranks. Unnamed operations are numbered, and errors call them 'unnamed.3', so
    all ranks must submit them in the same order. Only one operation with a given name may be pending at a time.
    ``process_set``: the ranks that take part, each of which must call; by default all ranks.
    ``op``: by default the average. ``prescale_factor`` multiplies each rank's input, ``postscale_factor`` the result.
    ``compression``: a codec from :mod:`rueda.compression` or its name, such as ``"int8"``, for sums and averages of
    floating-point numbers; by default elements are sent uncompressed.
    Returns a new array of the same shape and dtype.

    Raises :class:`rueda.MismatchError` if ranks differ in dtype, shape, op, factors or compression,
    :class:`rueda.UnsupportedError` for an unsupported dtype or an op that is undefined for it,
    :class:`rueda.InvalidArgumentError` on every rank if one rank has no memory for the result,
    :class:`rueda.DuplicateNameError`, :class:`rueda.StalledError`, :class:`rueda.PeerLostError` and
    :class:`rueda.ShutdownError`.

    Example::

        >>> rueda.allreduce(np.array([1.0, 2.0]), op=rueda.Sum, name="loss")  # of one rank
        array([1., 2.])
    """
    if type(array) is np.ndarray:
        try:
            output = np.empty(array.shape, array.dtype)
        except MemoryError as error:  # every rank is told
            return refuse(name, process_set, unusable(array, error)).result()  # type: ignore[return-value]
        try:
            if (
                compression is None
                and not arrival.place
                and _native.allreduce_arrays(
                    array,
                    output,
                    name,
                    op,
                    prescale_factor,
                    postscale_factor,
                    process_set.process_set_id,
                )
            ):
                return output
        except AttributeError:
            require_process_set(process_set)
            raise
    return allreduce_async(
        array, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


def allreduce_async(
    array: npt.ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
    priority: int = 0,
) -> Handle[Array]:
    """:func:`allreduce` that returns a :class:`rueda.Handle` immediately. ``array`` must not be written meanwhile.

    ``priority``: among the operations that all ranks are ready for, the one with the highest priority goes first;
    between hosts over TCP it overtakes data in flight. Must be the same on every rank, otherwise
    :class:`rueda.MismatchError`.

    Example::

        >>> handle = rueda.allreduce_async(np.ones(2), name="layer1")
        >>> handle.result()
        array([1., 1.])
    """
    return _collectives.allreduce(
        array,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        compression=compression,
        priority=priority,
    )


def allreduce_(
    array: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
) -> Array:
    """:func:`allreduce` in place: overwrites ``array`` and returns it. It must be contiguous and writeable.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` on every rank if one rank's array is not
    contiguous.

    Example::

        >>> gradient = np.ones(2)
        >>> rueda.allreduce_(gradient, name="layer1") is gradient
        True
    """
    # No helper function in between: this is most of the time of a small call.
    try:
        if (
            compression is None
            and not arrival.place
            and _native.allreduce_arrays(
                array,
                array,
                name,
                op,
                prescale_factor,
                postscale_factor,
                process_set.process_set_id,
            )
        ):
            return array
    except AttributeError:
        require_process_set(process_set)
        raise
    return allreduce_async_(
        array, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


def allreduce_async_(
    array: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
    priority: int = 0,
) -> Handle[Array]:
    """:func:`allreduce_` that returns a handle immediately. ``array`` must be neither read nor written meanwhile.

    Example::

        >>> gradient = np.ones(2)
        >>> handle = rueda.allreduce_async_(gradient, name="layer1")
        >>> handle.result() is gradient
        True
    """
    return _collectives.allreduce(
        array,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        in_place=True,
        compression=compression,
        priority=priority,
    )


def grouped_allreduce(
    arrays: Iterable[npt.ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
) -> list[Array]:
    """:func:`allreduce` of several arrays together: none is reduced before all are ready on all ranks.

    Their dtypes and shapes may differ. Returns the new arrays in the same order. Raises as :func:`allreduce`.

    Example::

        >>> rueda.grouped_allreduce([np.ones(2), np.zeros(1)], name="layer1")
        [array([1., 1.]), array([0.])]
    """
    return grouped_allreduce_async(
        arrays, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


def grouped_allreduce_async(
    arrays: Iterable[npt.ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
    priority: int = 0,
) -> Handle[list[Array]]:
    """:func:`grouped_allreduce` that immediately returns one handle for all arrays.

    Example::

        >>> handle = rueda.grouped_allreduce_async([np.ones(2), np.zeros(1)], name="layer1")
        >>> handle.result()
        [array([1., 1.]), array([0.])]
    """
    return _collectives.grouped_allreduce(
        arrays,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        compression=compression,
        priority=priority,
    )


def grouped_allreduce_(
    arrays: Iterable[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
) -> list[Array]:
    """:func:`grouped_allreduce` in place: overwrites the arrays and returns them. Raises as :func:`allreduce_`.

    Example::

        >>> weight, bias = [np.ones(2), np.zeros(1)]
        >>> reduced = rueda.grouped_allreduce_([weight, bias], name="layer1")
        >>> reduced[0] is weight
        True
    """
    return grouped_allreduce_async_(
        arrays, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


def grouped_allreduce_async_(
    arrays: Iterable[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
    priority: int = 0,
) -> Handle[list[Array]]:
    """:func:`grouped_allreduce_` that immediately returns one handle for all arrays.

    Example::

        >>> weight, bias = [np.ones(2), np.zeros(1)]
        >>> handle = rueda.grouped_allreduce_async_([weight, bias], name="layer1")
        >>> handle.result()[0] is weight
        True
    """
    return _collectives.grouped_allreduce(
        arrays,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        in_place=True,
        compression=compression,
        priority=priority,
    )


def reducescatter(
    array: npt.ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    splits: Iterable[int] | None = None,
) -> Array:
    """Reduces like :func:`allreduce`, then gives each rank its rows of the first dimension.

    ``array``: at least one dimension, the same shape and dtype on every rank. ``splits``: the number of rows for each
    rank of the set, the same on every rank; by default as even as possible, with one more for earlier ranks.
    Returns a new array of shape ``[rows of this rank, ...]``.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` for splits that do not add up.

    Example::

        >>> rueda.reducescatter(np.ones((3, 2)), op=rueda.Sum, name="layer1").shape  # all rows, of one rank
        (3, 2)
    """
    return _collectives.reducescatter(
        array, name, op, prescale_factor, postscale_factor, splits, process_set, blocking=True
    ).result()


def reducescatter_async(
    array: npt.ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    splits: Iterable[int] | None = None,
) -> Handle[Array]:
    """:func:`reducescatter` that returns a handle immediately. ``array`` must not be written meanwhile.

    Example::

        >>> handle = rueda.reducescatter_async(np.ones(2), name="layer1")
        >>> handle.result()
        array([1., 1.])
    """
    return _collectives.reducescatter(
        array, name, op, prescale_factor, postscale_factor, splits, process_set
    )
