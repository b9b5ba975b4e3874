"""reducescatter with Horovod's signatures, which differ from those of allreduce."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from rueda.handles import Handle
from rueda.horovod.exceptions import translated
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.torch.compression import Compression
from rueda.horovod.torch.reduce_ops import Average, Op, element_wise
from rueda.torch import reductions
from rueda.torch.autograd import GroupedReducescatter, grouped_reducescatters

__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]

Tensor = torch.Tensor


@translated
def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduces as :func:`allreduce`, then leaves each rank its rows of the first dimension, with gradients.

    ``tensor``: at least one dimension. The rows are dealt out as evenly as possible, earlier ranks get one more.

    Example::

        >>> hvd.reducescatter(torch.ones((3, 2)), op=hvd.Sum, name="layer1").shape  # all rows, of one rank
        torch.Size([3, 2])
    """
    sent, context = compression.compress(tensor)
    reduced = reductions.reducescatter(
        sent, name, element_wise(op), prescale_factor, postscale_factor, process_set
    )
    result: Tensor = compression.decompress(reduced, context)
    return result


@translated
def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[Tensor]:
    """:func:`reducescatter` that returns a handle at once. ``tensor`` must not be written meanwhile.

    Example::

        >>> handle = hvd.reducescatter_async(torch.ones(2), name="layer1")
        >>> hvd.synchronize(handle)
        tensor([1., 1.])
    """
    return reductions.reducescatter_async(
        tensor, name, element_wise(op), prescale_factor, postscale_factor, process_set
    )


@translated
def grouped_reducescatter(
    tensors: Iterable[Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """:func:`reducescatter` of several tensors, of which number i is called ``name.i``. All are on their way at once.

    Example::

        >>> hvd.grouped_reducescatter([torch.ones(2), torch.zeros(1)], name="layer1")
        [tensor([1., 1.]), tensor([0.])]
    """
    sent = [compression.compress(tensor) for tensor in tensors]
    reduced = GroupedReducescatter.apply(  # type: ignore[no-untyped-call]
        name,
        element_wise(op),
        prescale_factor,
        postscale_factor,
        process_set,
        *(each for each, _ in sent),
    )
    return [
        compression.decompress(mine, context)
        for mine, (_, context) in zip(reduced, sent, strict=True)
    ]


@translated
def grouped_reducescatter_async(
    tensors: Iterable[Tensor],
    name: str | None = None,
    op: Op = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[Tensor]]:
    """:func:`grouped_reducescatter` that returns one handle for all tensors at once.

    Example::

        >>> handle = hvd.grouped_reducescatter_async([torch.ones(2), torch.zeros(1)], name="layer1")
        >>> hvd.synchronize(handle)
        [tensor([1., 1.]), tensor([0.])]
    """
    return grouped_reducescatters(
        tensors, name, element_wise(op), prescale_factor, postscale_factor, process_set
    )
