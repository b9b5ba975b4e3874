"""allreduce and reducescatter of TensorFlow tensors, with Horovod's signatures and gradients.

``device_dense``, ``device_sparse`` and ``ignore_name_scope`` are accepted and have no effect: all data passes through
host memory, and unnamed operations are numbered. Every rank of ``process_set`` must take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import rueda
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.tensorflow.compression import Compression
from rueda.horovod.tensorflow.exchanges import allgather
from rueda.horovod.tensorflow.host import call, translated
from rueda.horovod.tensorflow.reduce_ops import (
    Average,
    ReduceOp,
    Sum,
    chosen,
    divided,
    element_wise,
    reduced,
)

__all__ = ["allreduce", "grouped_allreduce", "grouped_reducescatter", "reducescatter"]


@translated
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces the tensor over the ranks, and its gradient in the same way; ``tf.IndexedSlices`` are gathered.

    ``op``: Average (the default; integers are rounded towards zero), Sum, Min, Max or Product. Slices can only be
    averaged or summed, without factors. Raises :class:`HorovodInternalError`, which is a ``tf.errors.OpError``, on
    every rank if shapes, dtypes or arguments differ.

    Example::

        >>> mean = hvd.allreduce(tf.constant([1.0, 2.0]), name="loss")  # doctest: +SKIP
    """
    wanted = chosen(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError("prescale_factor and postscale_factor need dense tensors")
        return _of_slices(tensor, wanted, name, process_set)
    factors = prescale_factor, postscale_factor
    return _of_dense([tensor], name, wanted, factors, process_set, compression)[0]


@translated
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """:func:`allreduce` of several tensors together; ``tf.IndexedSlices`` are gathered one by one."""
    wanted = chosen(op, average)
    options = {
        "compression": compression,
        "op": wanted,
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    dense = [index for index, t in enumerate(tensors) if not isinstance(t, tf.IndexedSlices)]
    results = [
        None if index in dense else allreduce(t, name=name and f"{name}.{index}", **options)
        for index, t in enumerate(tensors)
    ]
    factors = prescale_factor, postscale_factor
    found = _of_dense([tensors[i] for i in dense], name, wanted, factors, process_set, compression)
    for index, result in zip(dense, found, strict=True):
        results[index] = result
    return results


@translated
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces the tensor and leaves each rank its share of the rows; the first ranks get any extra rows."""
    sent, context = compression.compress(tf.convert_to_tensor(tensor))
    factors = prescale_factor, postscale_factor
    return compression.decompress(
        _scattered(sent, name, element_wise(op), factors, process_set), context
    )


@translated
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """:func:`reducescatter` of each tensor, one after the other."""
    return [
        reducescatter(
            tensor,
            compression=compression,
            op=op,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        for tensor in tensors
    ]


def _of_dense(
    tensors: list[Any],
    name: str | None,
    op: ReduceOp,
    factors: tuple[float, float],
    process_set: ProcessSet,
    compression: Any,
) -> list[Any]:
    if not tensors:
        return []
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    found = _reduced([sent for sent, _ in pairs], name, op, factors, process_set)
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(found, pairs, strict=True)
    ]


def _reduced(
    tensors: list[Any],
    name: str | None,
    op: ReduceOp,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> list[Any]:
    def forwards(*inputs: Any) -> Any:
        results = call(
            lambda *arrays: reduced(arrays, name, op, *factors, process_set),
            inputs,
            [t.dtype for t in inputs],
            [t.shape for t in inputs],
        )

        def backwards(*gradients: Any) -> list[Any]:
            back = name and f"{name}.gradient"
            dense = [tf.convert_to_tensor(g) for g in gradients]
            return _reduced(dense, back, op, factors, process_set)

        return results, backwards

    return list(tf.nest.flatten(tf.custom_gradient(forwards)(*tensors)))


def _of_slices(tensor: Any, op: ReduceOp, name: str | None, process_set: ProcessSet) -> Any:
    if op not in (Average, Sum):
        raise NotImplementedError("tf.IndexedSlices can be averaged and summed only")
    values = allgather(tensor.values, name and f"{name}.values", process_set=process_set)
    indices = allgather(tensor.indices, name and f"{name}.indices", process_set=process_set)
    if op == Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=tensor.dense_shape)


def _scattered(
    tensor: Any,
    name: str | None,
    op: ReduceOp,
    factors: tuple[float, float],
    process_set: ProcessSet,
) -> Any:
    prescale, postscale = factors
    ranks = process_set.size()
    assert ranks is not None  # a set that is not added was refused before
    whole = op == Average and tensor.dtype.is_integer

    def on_host(array: Any) -> list[Any]:
        after = 1.0 if whole else postscale
        part = rueda.reducescatter(array, name, Sum if whole else op, prescale, after, process_set)
        return [divided(part, postscale, ranks) if whole else part]

    def forwards(given: Any) -> Any:
        shapes = [tf.TensorShape([None, *given.shape[1:]])] if given.shape.rank else None
        (result,) = call(on_host, [given], [given.dtype], shapes)

        def backwards(gradient: Any) -> Any:
            factor = prescale * postscale * (ranks if op == Sum else 1)
            return allgather(gradient * tf.cast(factor, gradient.dtype), process_set=process_set)

        return result, backwards

    return tf.custom_gradient(forwards)(tensor)
