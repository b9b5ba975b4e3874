"""allgather, broadcast, alltoall, join, barrier, poll and synchronize, with Horovod's signatures.

``_async`` functions return a handle for :func:`synchronize` and :func:`poll` immediately; those with a trailing
underscore work in place. Every rank of ``process_set`` must take part. If ranks disagree, or one of them cannot take
part, every rank raises :class:`HorovodInternalError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

import rueda.exchanges
from rueda.handles import Handle, transformed
from rueda.horovod.exceptions import translated
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.torch.pending import begun, require_usable
from rueda.horovod.torch.sparse import SparseHandle
from rueda.torch import exchanges

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
    "poll",
    "synchronize",
]

Tensor = torch.Tensor


@translated
def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order, with gradients.

    ``tensor``: at least one dimension; the first extent may differ between ranks and be 0.

    Example::

        >>> hvd.allgather(torch.ones((hvd.rank() + 1, 2)), name="rows").shape
        torch.Size([1, 2])
    """
    require_usable(name, process_set)
    return exchanges.allgather(tensor, name, process_set)


@translated
def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[Tensor]:
    """:func:`allgather` that returns a handle immediately. ``tensor`` must not be written meanwhile.

    Example::

        >>> handle = hvd.allgather_async(torch.ones(2), name="rows")
        >>> hvd.synchronize(handle)
        tensor([1., 1.])
    """
    return begun(lambda: exchanges.allgather_async(tensor, name, process_set), name, process_set)


@translated
def grouped_allgather(
    tensors: Iterable[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """:func:`allgather` of several tensors.

    Example::

        >>> hvd.grouped_allgather([torch.ones(2), torch.zeros(1)], name="batch")
        [tensor([1., 1.]), tensor([0.])]
    """
    group = list(tensors)
    require_usable(name, process_set, len(group))
    return exchanges.grouped_allgather(group, name, process_set)


@translated
def grouped_allgather_async(
    tensors: Iterable[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[list[Tensor]]:
    """:func:`grouped_allgather` that immediately returns one handle for all tensors.

    Example::

        >>> handle = hvd.grouped_allgather_async([torch.ones(2), torch.zeros(1)], name="batch")
        >>> hvd.synchronize(handle)
        [tensor([1., 1.]), tensor([0.])]
    """
    group = list(tensors)
    return begun(
        lambda: exchanges.grouped_allgather_async(group, name, process_set),
        name,
        process_set,
        len(group),
    )


@translated
def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Returns a copy of the tensor of rank ``root_rank`` (a world rank) on every rank, with gradients.

    ``tensor``: the same shape and dtype on every rank.

    Example::

        >>> hvd.broadcast(torch.ones(2), root_rank=0, name="weights")
        tensor([1., 1.])
    """
    require_usable(name, process_set)
    return exchanges.broadcast(tensor, root_rank, name, process_set)


@translated
def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """:func:`broadcast` that returns a handle immediately.

    Example::

        >>> handle = hvd.broadcast_async(torch.ones(2), root_rank=0, name="weights")
        >>> hvd.synchronize(handle)
        tensor([1., 1.])
    """
    return begun(
        lambda: exchanges.broadcast_async(tensor, root_rank, name, process_set), name, process_set
    )


@translated
def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """:func:`broadcast` in place: overwrites ``tensor``, which must be contiguous, and returns it.

    Example::

        >>> weights = torch.ones(2)
        >>> hvd.broadcast_(weights, root_rank=0, name="weights") is weights
        True
    """
    require_usable(name, process_set)
    return exchanges.broadcast_(tensor, root_rank, name, process_set)


@translated
def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """:func:`broadcast_` that returns a handle immediately. ``tensor`` must be neither read nor written meanwhile.

    Example::

        >>> weights = torch.ones(2)
        >>> handle = hvd.broadcast_async_(weights, root_rank=0, name="weights")
        >>> hvd.synchronize(handle) is weights
        True
    """
    return begun(
        lambda: exchanges.broadcast_async_(tensor, root_rank, name, process_set), name, process_set
    )


def _rows(splits: Any) -> Any:
    return splits.tolist() if isinstance(splits, Tensor) else splits


def _like(splits: Any, counts: Tensor) -> Tensor:
    """Returns the received splits in the dtype and on the device of ``splits``, or as int32, as in Horovod."""
    if isinstance(splits, Tensor):
        return counts.to(device=splits.device, dtype=splits.dtype)
    return counts.to(torch.int32)


@translated
def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Sends ``splits[r]`` rows of ``tensor`` to rank r of the set and concatenates what arrives, with gradients.

    ``splits``: a tensor or list of integers that add up to the first extent; by default even.
    Returns the new tensor and, if ``splits`` is given, a tensor with the number of rows received from each rank.

    Example::

        >>> received, counts = hvd.alltoall(torch.ones(3), splits=torch.tensor([3]), name="shuffle")
        >>> received, counts.tolist()
        (tensor([1., 1., 1.]), [3])
    """
    require_usable(name, process_set)
    rows = _rows(splits)
    if rows is None:
        return exchanges.alltoall(tensor, None, name, process_set)
    received, counts = exchanges.alltoall(tensor, rows, name, process_set)
    return received, _like(splits, counts)


@translated
def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[Tensor, Tensor]]:
    """:func:`alltoall` that returns a handle immediately; its result always has the received splits.

    Example::

        >>> handle = hvd.alltoall_async(torch.ones(2), name="shuffle")
        >>> received, counts = hvd.synchronize(handle)
        >>> received
        tensor([1., 1.])
    """
    handle = begun(
        lambda: exchanges.alltoall_with_counts_async(tensor, _rows(splits), name, process_set),
        name,
        process_set,
    )
    return transformed(handle, lambda result: (result[0], _like(splits, result[1])))


@translated
def join(device: int = -1) -> int:
    """Announces that this rank has no more data; once all ranks have joined, returns the last one to join.

    Until then this rank takes part in the others' operations without contributing. An average divides by all ranks of
    the set (unless ``RUEDA_JOIN_AVERAGE`` is set otherwise, or ``rueda.init()`` formed the world). ``device`` is
    ignored: a joined rank continues to use its previous GPU.

    Example::

        >>> for batch in range(hvd.rank() + 1):  # more on some ranks than on others
        ...     gradient = hvd.allreduce(torch.ones(2), name="gradient")
        >>> hvd.join()  # the last rank to join
        0
    """
    return rueda.exchanges.join()


@translated
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns once every rank of the set has called it.

    Example::

        >>> if hvd.rank() == 0:
        ...     pass  # download
        >>> hvd.barrier()
    """
    rueda.exchanges.barrier(process_set)


def poll(handle: Handle[Any] | SparseHandle) -> bool:
    """Whether an asynchronous operation has completed, so that :func:`synchronize` will not block.

    Example::

        >>> handle = hvd.allreduce_async(torch.ones(2), name="layer1")
        >>> while not hvd.poll(handle):
        ...     pass  # prepare the next batch
        >>> hvd.synchronize(handle)
        tensor([1., 1.])
    """
    return (handle.handle if isinstance(handle, SparseHandle) else handle).done()


@translated
def synchronize(handle: Handle[Any] | SparseHandle | None) -> Any:
    """Waits for an asynchronous operation and returns its result; raises :class:`HorovodInternalError`.

    Example::

        >>> handles = [hvd.allreduce_async(torch.ones(n), name=f"layer{n}") for n in (1, 2)]
        >>> [hvd.synchronize(handle) for handle in handles]
        [tensor([1.]), tensor([1., 1.])]
    """
    if handle is None:
        return None
    return (handle.handle if isinstance(handle, SparseHandle) else handle).result()
