"""Collectives that move tensors: allgather, broadcast, alltoall.

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
from typing import overload

import torch

from rueda.handles import Handle
from rueda.process_sets import ProcessSet, global_process_set
from rueda.submission import Collectives, part_name
from rueda.torch.autograd import Allgather, Alltoall, Broadcast
from rueda.torch.tensors import TorchAdapter

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
]

_collectives = Collectives(TorchAdapter(gpus=True))


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order.

    ``tensor``: at least one dimension. The first extent may differ between ranks and may be 0; the other extents and
    the dtype must agree. Returns a new tensor of shape ``[sum of first extents, ...]``.

    Raises as :func:`allreduce`.

    Example::

        >>> rueda.torch.allgather(torch.ones((rueda.torch.rank() + 1, 2)), name="rows").shape
        torch.Size([1, 2])
    """
    result: torch.Tensor = Allgather.apply(tensor, name, process_set)  # type: ignore[no-untyped-call]
    return result


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """:func:`allgather` that returns a handle immediately. ``tensor`` must not be written meanwhile.

    Example::

        >>> handle = rueda.torch.allgather_async(torch.ones(2), name="rows")
        >>> handle.result()
        tensor([1., 1.])
    """
    return _collectives.allgather(tensor, name, process_set)


def grouped_allgather(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """:func:`allgather` of several tensors; number i is named ``name.i``. Raises as :func:`allgather`.

    Example::

        >>> rueda.torch.grouped_allgather([torch.ones(2), torch.zeros(1)], name="batch")
        [tensor([1., 1.]), tensor([0.])]
    """
    return [
        allgather(tensor, part_name(name, number), process_set)
        for number, tensor in enumerate(tensors)
    ]


def grouped_allgather_async(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """:func:`grouped_allgather` that immediately returns one handle for all tensors.

    Example::

        >>> handle = rueda.torch.grouped_allgather_async([torch.ones(2), torch.zeros(1)], name="batch")
        >>> handle.result()
        [tensor([1., 1.]), tensor([0.])]
    """
    return _collectives.grouped_allgather(tensors, name, process_set)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns a copy of the tensor of rank ``root_rank`` (a world rank) on every rank.

    ``tensor``: any shape and dtype, the same on every rank; its elements matter at the root only.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` for a root outside the process set.

    Example::

        >>> rueda.torch.broadcast(torch.ones(2), root_rank=0, name="weights")
        tensor([1., 1.])
    """
    result: torch.Tensor = Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """:func:`broadcast` that returns a handle immediately.

    Example::

        >>> handle = rueda.torch.broadcast_async(torch.ones(2), root_rank=0, name="weights")
        >>> handle.result()
        tensor([1., 1.])
    """
    return _collectives.broadcast(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """:func:`broadcast` in place: overwrites ``tensor`` and returns it. It must be contiguous and writeable.

    Raises as :func:`broadcast`, and :class:`rueda.InvalidArgumentError` on every rank if one rank's tensor is not
    contiguous.

    Example::

        >>> weights = torch.ones(2)
        >>> rueda.torch.broadcast_(weights, root_rank=0, name="weights") is weights
        True
    """
    return _collectives.broadcast(
        tensor, root_rank, name, process_set, in_place=True, blocking=True
    ).result()


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """:func:`broadcast_` that returns a handle immediately. ``tensor`` must be neither read nor written meanwhile.

    Example::

        >>> weights = torch.ones(2)
        >>> handle = rueda.torch.broadcast_async_(weights, root_rank=0, name="weights")
        >>> handle.result() is weights
        True
    """
    return _collectives.broadcast(tensor, root_rank, name, process_set, in_place=True)


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor: ...


@overload
def alltoall(
    tensor: torch.Tensor,
    splits: Iterable[int],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def alltoall(
    tensor: torch.Tensor,
    splits: Iterable[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends ``splits[r]`` rows of ``tensor`` to rank r of the set and concatenates what arrives, in rank order.

    ``tensor``: at least one dimension; the first extent may differ between ranks, the others and the dtype must agree.
    ``splits``: one number per rank of the set, adding up to the first extent; by default even.
    Returns the new tensor and, if splits are given, an int64 tensor of the number of rows received from each rank.

    Raises as :func:`allreduce`, and :class:`rueda.InvalidArgumentError` for splits that do not add up or an extent
    that cannot be divided evenly.

    Example::

        >>> received, counts = rueda.torch.alltoall(torch.ones(3), splits=[3], name="shuffle")
        >>> received, counts.tolist()
        (tensor([1., 1., 1.]), [3])
    """
    received: torch.Tensor
    received, counts = Alltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    return received if splits is None else (received, counts)


@overload
def alltoall_async(
    tensor: torch.Tensor,
    splits: None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]: ...


@overload
def alltoall_async(
    tensor: torch.Tensor,
    splits: Iterable[int],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[torch.Tensor, torch.Tensor]]: ...


def alltoall_async(
    tensor: torch.Tensor,
    splits: Iterable[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor] | Handle[tuple[torch.Tensor, torch.Tensor]]:
    """:func:`alltoall` that returns a handle immediately. ``tensor`` must not be written meanwhile.

    Example::

        >>> handle = rueda.torch.alltoall_async(torch.ones(2), name="shuffle")
        >>> handle.result()
        tensor([1., 1.])
    """
    if splits is None:
        return _collectives.alltoall(tensor, name, process_set)
    return alltoall_with_counts_async(tensor, splits, name, process_set)


def alltoall_with_counts_async(
    tensor: torch.Tensor,
    splits: Iterable[int] | None,
    name: str | None,
    process_set: ProcessSet,
) -> Handle[tuple[torch.Tensor, torch.Tensor]]:
    """:func:`alltoall_async` that also returns the number of rows received from each rank, even without splits."""
    return _collectives.alltoall_with_counts(tensor, splits, name, process_set)
