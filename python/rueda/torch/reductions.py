"""Collectives that reduce tensors: allreduce and reducescatter.

Common to all collectives: ``name`` matches the operation across ranks; unnamed ones are matched by their number within
the process set, so every rank must submit those in the same order. ``process_set`` is the set of ranks that take part,
all of which must call; by default all ranks. A function with ``_async`` returns a :class:`rueda.Handle` immediately;
a trailing underscore means in place. If ranks disagree or one of them cannot take part, every rank raises the same
error. Gradients flow through the functions that are neither asynchronous nor in place.

Do not resize a tensor, or give it other memory, before asking for its handle's result. Otherwise that raises
:class:`rueda.InvalidArgumentError`, on this rank only, as no other can know; the others' results are correct.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rueda.compression import Codec
from rueda.handles import Handle
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet, global_process_set
from rueda.submission import Collectives
from rueda.torch.autograd import Allreduce, GroupedAllreduce, Reducescatter
from rueda.torch.tensors import TorchAdapter, reduce_now

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

_collectives = Collectives(TorchAdapter(gpus=True))


def allreduce(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
) -> torch.Tensor:
    """Reduces ``tensor`` element by element over the ranks; every rank gets the same bits.

    Gradients flow through sums and averages: they go through the same reduction, and can be differentiated again.

    ``tensor``: any shape, the same on every rank; copied first if not contiguous. Its dtype: float16, bfloat16,
    float32, float64, int8 to int64, uint8 to uint64, bool, complex64 or complex128. ``name`` and ``process_set``: as
    for :func:`rueda.allreduce`.
    ``op``: by default the average. ``prescale_factor`` multiplies each rank's input, ``postscale_factor`` the result.
    ``compression``: a codec from :mod:`rueda.compression` or its name, such as ``"int8"``, for sums and averages of
    floating-point numbers; by default elements are sent uncompressed. Gradients go through the codec as well, without
    error feedback: ``"topk:0.01"`` drops 99% of their elements.
    Returns a new tensor of the same shape and dtype.

    Raises :class:`rueda.MismatchError` if ranks differ in dtype, shape, op, factors or compression,
    :class:`rueda.UnsupportedError` for an unsupported dtype or an op that is undefined for it,
    :class:`rueda.DuplicateNameError`, :class:`rueda.StalledError`, :class:`rueda.PeerLostError` and
    :class:`rueda.ShutdownError`.

    Example::

        >>> rueda.torch.allreduce(torch.tensor([1.0, 2.0]), op=rueda.Sum, name="loss")  # of one rank
        tensor([1., 2.])
    """
    result: torch.Tensor = Allreduce.apply(  # type: ignore[no-untyped-call]
        tensor, name, op, prescale_factor, postscale_factor, process_set, compression
    )
    return result


def allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
    priority: int = 0,
) -> Handle[torch.Tensor]:
    """:func:`allreduce` that returns a :class:`rueda.Handle` immediately. ``tensor`` must not be written meanwhile.

    ``priority``: among the operations that all ranks are ready for, the one with the highest priority goes first;
    between hosts over TCP it overtakes data in flight. Must be the same on every rank, otherwise
    :class:`rueda.MismatchError`.

    Example::

        >>> handle = rueda.torch.allreduce_async(torch.ones(2), name="layer1")
        >>> handle.result()
        tensor([1., 1.])
    """
    return _collectives.allreduce(
        tensor,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        compression=compression,
        priority=priority,
    )


def allreduce_(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
) -> torch.Tensor:
    """:func:`allreduce` in place: overwrites ``tensor`` and returns it. It must be contiguous and writeable.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` on every rank if one rank's tensor is not
    contiguous.

    Example::

        >>> gradient = torch.ones(2)
        >>> rueda.torch.allreduce_(gradient, name="layer1") is gradient
        True
    """
    if compression is None and reduce_now(
        tensor, tensor, name, op, prescale_factor, postscale_factor, process_set
    ):
        return tensor
    return allreduce_async_(
        tensor, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


def allreduce_async_(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
    priority: int = 0,
) -> Handle[torch.Tensor]:
    """:func:`allreduce_` that returns a handle immediately. ``tensor`` must be neither read nor written meanwhile.

    Example::

        >>> gradient = torch.ones(2)
        >>> handle = rueda.torch.allreduce_async_(gradient, name="layer1")
        >>> handle.result() is gradient
        True
    """
    return _collectives.allreduce(
        tensor,
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
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
) -> list[torch.Tensor]:
    """:func:`allreduce` of several tensors together: none is reduced before all are ready on all ranks.

    Their dtypes and shapes may differ. Returns the new tensors in the same order. Raises as :func:`allreduce`.

    Example::

        >>> rueda.torch.grouped_allreduce([torch.ones(2), torch.zeros(1)], name="layer1")
        [tensor([1., 1.]), tensor([0.])]
    """
    results: tuple[torch.Tensor, ...] = GroupedAllreduce.apply(  # type: ignore[no-untyped-call]
        name, op, prescale_factor, postscale_factor, process_set, compression, *tensors
    )
    return list(results)


def grouped_allreduce_async(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
    priority: int = 0,
) -> Handle[list[torch.Tensor]]:
    """:func:`grouped_allreduce` that immediately returns one handle for all tensors.

    Example::

        >>> handle = rueda.torch.grouped_allreduce_async([torch.ones(2), torch.zeros(1)], name="layer1")
        >>> handle.result()
        [tensor([1., 1.]), tensor([0.])]
    """
    return _collectives.grouped_allreduce(
        tensors,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        compression=compression,
        priority=priority,
    )


def grouped_allreduce_(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
) -> list[torch.Tensor]:
    """:func:`grouped_allreduce` in place: overwrites the tensors and returns them. Raises as :func:`allreduce_`.

    Example::

        >>> weight, bias = [torch.ones(2), torch.zeros(1)]
        >>> reduced = rueda.torch.grouped_allreduce_([weight, bias], name="layer1")
        >>> reduced[0] is weight
        True
    """
    return grouped_allreduce_async_(
        tensors, name, op, prescale_factor, postscale_factor, process_set, compression
    ).result()


def grouped_allreduce_async_(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Codec | str | None = None,
    priority: int = 0,
) -> Handle[list[torch.Tensor]]:
    """:func:`grouped_allreduce_` that immediately returns one handle for all tensors.

    Example::

        >>> weight, bias = [torch.ones(2), torch.zeros(1)]
        >>> handle = rueda.torch.grouped_allreduce_async_([weight, bias], name="layer1")
        >>> handle.result()[0] is weight
        True
    """
    return _collectives.grouped_allreduce(
        tensors,
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
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    splits: Iterable[int] | None = None,
) -> torch.Tensor:
    """Reduces like :func:`allreduce`, then gives each rank its rows of the first dimension.

    ``tensor``: at least one dimension, the same shape and dtype on every rank. ``splits``: the number of rows for each
    rank of the set, the same on every rank; by default as even as possible, with one more for earlier ranks.
    Returns a new tensor of shape ``[rows of this rank, ...]``; gradients flow through sums and averages.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` for splits that do not add up.

    Example::

        >>> rueda.torch.reducescatter(torch.ones((3, 2)), op=rueda.Sum, name="layer1").shape  # all rows, of one rank
        torch.Size([3, 2])
    """
    result: torch.Tensor = Reducescatter.apply(  # type: ignore[no-untyped-call]
        tensor, name, op, prescale_factor, postscale_factor, splits, process_set
    )
    return result


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    splits: Iterable[int] | None = None,
) -> Handle[torch.Tensor]:
    """:func:`reducescatter` that returns a handle immediately. ``tensor`` must not be written meanwhile.

    Example::

        >>> handle = rueda.torch.reducescatter_async(torch.ones(2), name="layer1")
        >>> handle.result()
        tensor([1., 1.])
    """
    return _collectives.reducescatter(
        tensor, name, op, prescale_factor, postscale_factor, splits, process_set
    )
