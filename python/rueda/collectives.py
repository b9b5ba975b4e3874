"""Collectives on NumPy arrays.

What holds for all of them: ``name`` matches the operation across ranks (unnamed ones match by their number within
the process set, so every rank must submit those in the same order); ``process_set`` is who takes part, all ranks by
default, and each of them must; a function with ``_async`` returns a :class:`rueda.Handle` at once; one with a
trailing underscore works in place. Where ranks disagree or one of them cannot take part, every rank raises the same error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

import numpy.typing as npt

from rueda import _native
from rueda.handles import Handle
from rueda.numpy_arrays import Array, NumpyAdapter
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet, global_process_set, identify
from rueda.submission import Collectives

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "join",
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
) -> Array:
    """Reduces ``array`` element by element over the ranks; every rank gets the same bits.

    ``array``: any shape, the same on every rank; any of the 15 dtypes; copied first when not contiguous.
    ``op``: by default the average. ``prescale_factor`` multiplies each rank's input, ``postscale_factor`` the result.
    Returns a new array of the same shape and dtype.

    Raises :class:`rueda.MismatchError` where ranks differ in dtype, shape, op or factors,
    :class:`rueda.UnsupportedError` for an op that means nothing on the dtype, :class:`rueda.InvalidArgumentError` for a
    dtype that is not supported, :class:`rueda.DuplicateNameError`, :class:`rueda.StalledError`,
    :class:`rueda.PeerLostError` and :class:`rueda.ShutdownError`.

    Example::

        total = rueda.allreduce(np.array([1.0, 2.0]), op=rueda.Sum, name="loss")
    """
    return allreduce_async(
        array, name, op, prescale_factor, postscale_factor, process_set
    ).result()


def allreduce_async(
    array: npt.ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """:func:`allreduce` that returns a :class:`rueda.Handle` at once. ``array`` must not be written meanwhile.

    Example::

        handle = rueda.allreduce_async(gradient, name="layer1")
        average = rueda.synchronize(handle)
    """
    return _collectives.allreduce(
        array, name, op, prescale_factor, postscale_factor, process_set
    )


def allreduce_(
    array: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """:func:`allreduce` into ``array`` itself, which is returned. It must be contiguous and writeable.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` on every rank where one rank's array is not
    contiguous.

    Example::

        rueda.allreduce_(gradient, name="layer1")
    """
    return allreduce_async_(
        array, name, op, prescale_factor, postscale_factor, process_set
    ).result()


def allreduce_async_(
    array: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """:func:`allreduce_` that returns a handle at once. ``array`` must be neither read nor written meanwhile.

    Example::

        handle = rueda.allreduce_async_(gradient, name="layer1")
        handle.result()
    """
    return _collectives.allreduce(
        array, name, op, prescale_factor, postscale_factor, process_set, in_place=True
    )


def grouped_allreduce(
    arrays: Iterable[npt.ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """:func:`allreduce` of several arrays together: none is reduced before all are ready on all ranks.

    Their dtypes and shapes may differ. Returns the new arrays in the same order. Raises as :func:`allreduce`.

    Example::

        weight, bias = rueda.grouped_allreduce([weight, bias], name="layer1")
    """
    return grouped_allreduce_async(
        arrays, name, op, prescale_factor, postscale_factor, process_set
    ).result()


def grouped_allreduce_async(
    arrays: Iterable[npt.ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array]]:
    """:func:`grouped_allreduce` that returns one handle for all arrays at once.

    Example::

        handle = rueda.grouped_allreduce_async([weight, bias], name="layer1")
        weight, bias = handle.result()
    """
    return _collectives.grouped_allreduce(
        arrays, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_(
    arrays: Iterable[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """:func:`grouped_allreduce` into the arrays themselves, which are returned. Raises as :func:`allreduce_`.

    Example::

        rueda.grouped_allreduce_([weight, bias], name="layer1")
    """
    return grouped_allreduce_async_(
        arrays, name, op, prescale_factor, postscale_factor, process_set
    ).result()


def grouped_allreduce_async_(
    arrays: Iterable[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array]]:
    """:func:`grouped_allreduce_` that returns one handle for all arrays at once.

    Example::

        handle = rueda.grouped_allreduce_async_([weight, bias], name="layer1")
        handle.result()
    """
    return _collectives.grouped_allreduce(
        arrays, name, op, prescale_factor, postscale_factor, process_set, in_place=True
    )


def allgather(
    array: npt.ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Concatenates the ranks' arrays along the first dimension, in rank order.

    ``array``: at least one dimension; the first extent may differ between ranks, also be 0; the others and the dtype
    must agree. Returns a new array of shape ``[sum of first extents, ...]``.

    Raises as :func:`allreduce`.

    Example::

        everyone = rueda.allgather(np.full((rueda.rank() + 1, 2), rueda.rank()), name="rows")
    """
    return allgather_async(array, name, process_set).result()


def allgather_async(
    array: npt.ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """:func:`allgather` that returns a handle at once. ``array`` must not be written meanwhile.

    Example::

        rows = rueda.allgather_async(mine, name="rows").result()
    """
    return _collectives.allgather(array, name, process_set)


def grouped_allgather(
    arrays: Iterable[npt.ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """:func:`allgather` of several arrays, of which number i is called ``name.i``. Raises as :func:`allgather`.

    Example::

        inputs, labels = rueda.grouped_allgather([inputs, labels], name="batch")
    """
    return grouped_allgather_async(arrays, name, process_set).result()


def grouped_allgather_async(
    arrays: Iterable[npt.ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Array]]:
    """:func:`grouped_allgather` that returns one handle for all arrays at once.

    Example::

        handle = rueda.grouped_allgather_async([inputs, labels], name="batch")
        inputs, labels = handle.result()
    """
    return _collectives.grouped_allgather(arrays, name, process_set)


def broadcast(
    array: npt.ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Returns a copy of the array of the rank ``root_rank`` (a world rank) on every rank.

    ``array``: any shape and dtype, the same on every rank; its elements matter at the root only.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` for a root outside the process set.

    Example::

        weights = rueda.broadcast(weights, root_rank=0, name="weights")
    """
    return broadcast_async(array, root_rank, name, process_set).result()


def broadcast_async(
    array: npt.ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """:func:`broadcast` that returns a handle at once.

    Example::

        weights = rueda.broadcast_async(weights, root_rank=0, name="weights").result()
    """
    return _collectives.broadcast(array, root_rank, name, process_set)


def broadcast_(
    array: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """:func:`broadcast` into ``array`` itself, which is returned. It must be contiguous and writeable.

    Raises as :func:`broadcast`, and :class:`rueda.InvalidArgumentError` on every rank where one rank's array is not
    contiguous.

    Example::

        rueda.broadcast_(weights, root_rank=0, name="weights")
    """
    return broadcast_async_(array, root_rank, name, process_set).result()


def broadcast_async_(
    array: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Array]:
    """:func:`broadcast_` that returns a handle at once. ``array`` must be neither read nor written meanwhile.

    Example::

        rueda.broadcast_async_(weights, root_rank=0, name="weights").result()
    """
    return _collectives.broadcast(array, root_rank, name, process_set, in_place=True)


def reducescatter(
    array: npt.ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    splits: Iterable[int] | None = None,
) -> Array:
    """Reduces as :func:`allreduce`, then leaves each rank its rows of the first dimension.

    ``array``: at least one dimension, the same shape and dtype on every rank. ``splits``: rows for each rank of the
    set, the same on every rank; by default as even as possible, earlier ranks get one more.
    Returns a new array of shape ``[rows of this rank, ...]``.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` for splits that do not add up.

    Example::

        mine = rueda.reducescatter(gradient, op=rueda.Sum, name="layer1")
    """
    return reducescatter_async(
        array, name, op, prescale_factor, postscale_factor, process_set, splits
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
    """:func:`reducescatter` that returns a handle at once. ``array`` must not be written meanwhile.

    Example::

        mine = rueda.reducescatter_async(gradient, name="layer1").result()
    """
    return _collectives.reducescatter(
        array, name, op, prescale_factor, postscale_factor, splits, process_set
    )


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
    Returns the new array, and, where splits are given, an int64 array of the rows received from each rank.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` for splits that do not add up or an extent
    that cannot be divided evenly.

    Example::

        received, counts = rueda.alltoall(rows, splits=[1, 0, 2], name="shuffle")
    """
    return alltoall_async(array, splits, name, process_set).result()


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
    """:func:`alltoall` that returns a handle at once. ``array`` must not be written meanwhile.

    Example::

        received = rueda.alltoall_async(rows, name="shuffle").result()
    """
    if splits is None:
        return _collectives.alltoall(array, name, process_set)
    return _collectives.alltoall_with_splits(array, splits, name, process_set)


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Returns when every rank of the set has called it. Raises :class:`rueda.StalledError` and others.

    Example::

        if rueda.rank() == 0:
            download()
        rueda.barrier()
    """
    native = _native.barrier(name or "", identify(process_set))
    Handle([native], lambda: None, None).result()


def join(process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no more data; returns, when all ranks have joined, the world rank that was last.

    Until then this rank takes part in the others' allreduce, reducescatter, allgather and broadcast with each
    operation's identity. An average divides by the ranks that contributed.

    Example::

        for batch in batches_of(rueda.rank()):    # more on some ranks than on others
            rueda.allreduce(gradient(batch), name="gradient")
        rueda.join()
    """
    native = _native.join("", identify(process_set))
    return Handle([native], native.last_joined_rank, None).result()
