"""Collectives that move NumPy arrays: allgather, broadcast, alltoall; and those without data.

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
from functools import partial
from typing import overload

import numpy.typing as npt

from rueda import _native
from rueda.adapter import Refusal
from rueda.arguments import text_of
from rueda.handles import Handle, release_completed
from rueda.numpy_arrays import Array, NumpyAdapter
from rueda.process_sets import ProcessSet, global_process_set, identify
from rueda.submission import Collectives, refuse

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "join",
]

_collectives = Collectives(NumpyAdapter())


def allgather(
    array: npt.ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Concatenates the ranks' arrays along the first dimension, in rank order.

    ``array``: at least one dimension. The first extent may differ between ranks and may be 0; the other extents and the
    dtype must agree. Returns a new array of shape ``[sum of first extents, ...]``.

    Raises as :func:`allreduce`.

    Example::

        >>> rueda.allgather(np.ones((rueda.rank() + 1, 2)), name="rows").shape
        (1, 2)
    """
    return _collectives.allgather(array, name, process_set, blocking=True).result()


def allgather_async(
    array: npt.ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """:func:`allgather` that returns a handle immediately. ``array`` must not be written meanwhile.

    Example::

        >>> handle = rueda.allgather_async(np.ones(2), name="rows")
        >>> handle.result()
        array([1., 1.])
    """
    return _collectives.allgather(array, name, process_set)


def grouped_allgather(
    arrays: Iterable[npt.ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """:func:`allgather` of several arrays; number i is named ``name.i``. Raises as :func:`allgather`.

    Example::

        >>> rueda.grouped_allgather([np.ones(2), np.zeros(1)], name="batch")
        [array([1., 1.]), array([0.])]
    """
    return grouped_allgather_async(arrays, name, process_set).result()


def grouped_allgather_async(
    arrays: Iterable[npt.ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array]]:
    """:func:`grouped_allgather` that immediately returns one handle for all arrays.

    Example::

        >>> handle = rueda.grouped_allgather_async([np.ones(2), np.zeros(1)], name="batch")
        >>> handle.result()
        [array([1., 1.]), array([0.])]
    """
    return _collectives.grouped_allgather(arrays, name, process_set)


def broadcast(
    array: npt.ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Returns a copy of the array of rank ``root_rank`` (a world rank) on every rank.

    ``array``: any shape and dtype, the same on every rank; its elements matter at the root only. ``root_rank`` has no
    default here; in ``broadcast_object()`` the default is 0. ``name`` and ``process_set``: as for :func:`allreduce`.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` for a root outside the process set.

    Example::

        >>> rueda.broadcast(np.ones(2), root_rank=0, name="weights")
        array([1., 1.])
    """
    return _collectives.broadcast(array, root_rank, name, process_set, blocking=True).result()


def broadcast_async(
    array: npt.ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """:func:`broadcast` that returns a handle immediately.

    Example::

        >>> handle = rueda.broadcast_async(np.ones(2), root_rank=0, name="weights")
        >>> handle.result()
        array([1., 1.])
    """
    return _collectives.broadcast(array, root_rank, name, process_set)


def broadcast_(
    array: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """:func:`broadcast` in place: overwrites ``array`` and returns it. It must be contiguous and writeable.

    Raises as :func:`broadcast`, and :class:`rueda.InvalidArgumentError` on every rank if one rank's array is not
    contiguous.

    Example::

        >>> weights = np.ones(2)
        >>> rueda.broadcast_(weights, root_rank=0, name="weights") is weights
        True
    """
    return _collectives.broadcast(
        array, root_rank, name, process_set, in_place=True, blocking=True
    ).result()


def broadcast_async_(
    array: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """:func:`broadcast_` that returns a handle immediately. ``array`` must be neither read nor written meanwhile.

    Example::

        >>> weights = np.ones(2)
        >>> handle = rueda.broadcast_async_(weights, root_rank=0, name="weights")
        >>> handle.result() is weights
        True
    """
    return _collectives.broadcast(array, root_rank, name, process_set, in_place=True)


@overload
def alltoall(
    array: npt.ArrayLike,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array: ...


@overload
def alltoall(
    array: npt.ArrayLike,
    splits: Iterable[int],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, Array]: ...


def alltoall(
    array: npt.ArrayLike,
    splits: Iterable[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array | tuple[Array, Array]:
    """Sends ``splits[r]`` rows of ``array`` to rank r of the set and concatenates what arrives, in rank order.

    ``array``: at least one dimension; the first extent may differ between ranks, the others and the dtype must agree.
    ``splits``: one number per rank of the set, adding up to the first extent; by default even.
    Returns the new array and, if splits are given, an int64 array of the number of rows received from each rank.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` for splits that do not add up or an extent
    that cannot be divided evenly.

    Example::

        >>> received, counts = rueda.alltoall(np.ones(3), splits=[3], name="shuffle")
        >>> received, counts.tolist()
        (array([1., 1., 1.]), [3])
    """
    if splits is None:
        return _collectives.alltoall(array, name, process_set, blocking=True).result()
    return _collectives.alltoall_with_counts(
        array, splits, name, process_set, blocking=True
    ).result()


@overload
def alltoall_async(
    array: npt.ArrayLike,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]: ...


@overload
def alltoall_async(
    array: npt.ArrayLike,
    splits: Iterable[int],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Array, Array]]: ...


@overload
def alltoall_async(
    array: npt.ArrayLike,
    splits: Iterable[int] | None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array] | Handle[tuple[Array, Array]]: ...


def alltoall_async(
    array: npt.ArrayLike,
    splits: Iterable[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array] | Handle[tuple[Array, Array]]:
    """:func:`alltoall` that returns a handle immediately. ``array`` must not be written meanwhile.

    Example::

        >>> handle = rueda.alltoall_async(np.ones(2), name="shuffle")
        >>> handle.result()
        array([1., 1.])
    """
    if splits is None:
        return _collectives.alltoall(array, name, process_set)
    return _collectives.alltoall_with_counts(array, splits, name, process_set)


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Returns when every rank of the set has called it. Raises :class:`rueda.StalledError` and others.

    Example::

        >>> if rueda.rank() == 0:
        ...     pass  # download
        >>> rueda.barrier()
    """
    try:
        label = text_of(name)
    except Refusal as refusal:
        refuse(name, process_set, refusal).result()
        return
    release_completed(2)
    _native.pass_barrier(label, identify(process_set))


def join(process_set: ProcessSet = global_process_set) -> int:
    """Announces that this rank has no more data; once all ranks have joined, returns the last one's world rank.

    Until then, this rank takes part in the others' allreduce, reducescatter, allgather and broadcast with the identity
    of each operation. An average divides by the number of ranks that contributed, or by all with ``join_average=all``.
    A barrier counts joined ranks as present. alltoall, allreduce_leaves and a broadcast whose root has joined raise
    :class:`rueda.InvalidArgumentError` on all ranks.

    Example::

        >>> for batch in range(rueda.rank() + 1):  # more on some ranks than on others
        ...     gradient = rueda.allreduce(np.ones(2), name="gradient")
        >>> rueda.join()  # the rank that was last
        0
    """
    submit = partial(_native.join, "", identify(process_set))
    return Handle(lambda: [submit()], lambda natives: natives[0].last_joined_rank(), None).result()
