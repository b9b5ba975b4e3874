"""allgather, broadcast, alltoall, join and rank queries for TensorFlow, with Horovod's signatures and gradients.

``ignore_name_scope`` is accepted and has no effect: unnamed operations are numbered. Every rank of
``process_set`` must take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import rueda
from rueda import _native
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.tensorflow.host import call, translated
from rueda.horovod.tensorflow.reduce_ops import Average, reduced

__all__ = [
    "allgather",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]


def _averaged(gradient: Any, process_set: ProcessSet) -> Any:
    (result,) = call(
        lambda array: reduced([array], None, Average, 1.0, 1.0, process_set),
        [tf.convert_to_tensor(gradient)],
        [gradient.dtype],
        [gradient.shape],
    )
    return result


@translated
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates the ranks' tensors along the first dimension, whose extent may differ between ranks and be 0.

    The gradient is this rank's rows of the average of all ranks' gradients.
    """

    def forwards(given: Any) -> Any:
        shapes = [tf.TensorShape([None, *given.shape[1:]])] if given.shape.rank else None
        (result,) = call(
            lambda array: [rueda.allgather(array, name, process_set)],
            [given],
            [given.dtype],
            shapes,
        )

        def backwards(gradient: Any) -> Any:
            rows = tf.shape(given)[:1]
            mean = _averaged(gradient, process_set)
            (extents,) = call(
                lambda array: [rueda.allgather(array, None, process_set)],
                [rows],
                [tf.int32],
                [[None]],
            )
            first = tf.reduce_sum(extents[: process_set.rank()])
            return mean[first : first + rows[0]]

        return result, backwards

    return tf.custom_gradient(forwards)(tf.convert_to_tensor(tensor))


@translated
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """:func:`allgather` of each tensor, one after the other."""
    return [
        allgather(tensor, name and f"{name}.{index}", process_set=process_set)
        for index, tensor in enumerate(tensors)
    ]


@translated
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the tensor of rank ``root_rank`` (a world rank); its gradient is the ranks' average, 0 on other ranks."""

    def forwards(given: Any) -> Any:
        (result,) = call(
            lambda array: [rueda.broadcast(array, root_rank, name, process_set)],
            [given],
            [given.dtype],
            [given.shape],
        )

        def backwards(gradient: Any) -> Any:
            mean = _averaged(gradient, process_set)
            return mean if rueda.rank() == root_rank else tf.zeros_like(mean)

        return result, backwards

    return tf.custom_gradient(forwards)(tf.convert_to_tensor(tensor))


@translated
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrites the variables of every rank with those of rank ``root_rank``; returns their values."""
    kept = list(variables)
    values = [tf.convert_to_tensor(variable) for variable in kept]

    def on_host(*arrays: Any) -> list[Any]:
        handles = [
            rueda.broadcast_async(a, root_rank, name and f"{name}.{index}", process_set)
            for index, a in enumerate(arrays)
        ]
        return [handle.result() for handle in handles]

    found = call(on_host, values, [v.dtype for v in values], [v.shape for v in values])
    for variable, value in zip(kept, found, strict=True):
        variable.assign(value)
    return found


@translated
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends ``splits[r]`` rows to each rank r; returns the received rows and, with ``splits``, the number per rank."""
    given = tf.convert_to_tensor(tensor)
    if splits is None:
        ranks = process_set.size() or 1
        rows = tf.shape(given)[0]
        equal = tf.fill([ranks], rows // ranks)

        def checked(array: Any, parts: Any) -> list[Any]:
            if array.shape[0] % ranks:
                parts = None  # Rueda reports the error on every rank
            return _exchanged(array, parts, name, process_set)

        return _alltoall(checked, given, equal, process_set)[0]
    parts = tf.convert_to_tensor(splits)

    def as_told(array: Any, parts: Any) -> list[Any]:
        return _exchanged(array, parts, name, process_set)

    return tuple(_alltoall(as_told, given, parts, process_set))


def _exchanged(array: Any, parts: Any, name: str | None, process_set: ProcessSet) -> list[Any]:
    if parts is None:
        result = rueda.alltoall(array, None, name, process_set)
        return [result, np.zeros(0, np.int32)]
    result, received = rueda.alltoall(array, [int(n) for n in parts], name, process_set)
    return [result, np.asarray(received, np.int32)]


def _alltoall(on_host: Any, given: Any, parts: Any, process_set: ProcessSet) -> list[Any]:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def forwards(given: Any) -> Any:
        shapes = [tf.TensorShape([None, *given.shape[1:]]), [None]] if given.shape.rank else None
        found, received = call(on_host, [given, parts], [given.dtype, tf.int32], shapes)

        def backwards(gradient: Any, _: Any = None) -> Any:
            def back(array: Any, counts: Any) -> list[Any]:
                return _exchanged(array, counts, None, process_set)

            types = [gradient.dtype, tf.int32]
            return call(back, [tf.convert_to_tensor(gradient), received], types)[0]

        return [found, received], backwards

    return list(forwards(given))


@translated
def join() -> Any:
    """Announces that this rank has no more data; once all ranks have joined, returns the last one to join."""
    (result,) = call(lambda: [np.int32(rueda.join())], [], [tf.int32], [[]])
    return result


def _number(function: Any) -> Any:
    (result,) = call(lambda: [np.int32(function())], [], [tf.int32], [[]])
    return result


@translated
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the size of a set at run time, even in a ``tf.function`` that was traced before."""
    return _number(lambda: len(_native.ranks_of(process_set_id)))


@translated
def local_size_op(name: str | None = None) -> Any:
    """Returns :func:`local_size` at run time."""
    return _number(rueda.local_size)


@translated
def rank_op(name: str | None = None) -> Any:
    """Returns :func:`rank` at run time."""
    return _number(rueda.rank)


@translated
def local_rank_op(name: str | None = None) -> Any:
    """Returns :func:`local_rank` at run time."""
    return _number(rueda.local_rank)


@translated
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns 1 if this rank is in the set, 0 if not, -1 if there is no world, -2 if the set is unknown."""

    def included() -> int:
        if not rueda.is_initialized():
            return -1
        if process_set_id not in _native.process_set_ids():
            return -2
        return int(rueda.rank() in _native.ranks_of(process_set_id))

    return _number(included)
