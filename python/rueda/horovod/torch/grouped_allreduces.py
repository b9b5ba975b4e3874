"""allreduce of several tensors together, with Horovod's signatures. What holds for each stands at allreduce."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from rueda.handles import Handle, combine
from rueda.horovod.exceptions import translated
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.torch.adasum import adasum_async
from rueda.horovod.torch.compression import Compression
from rueda.horovod.torch.reduce_ops import AdasumOp, Op, chosen
from rueda.submission import part_name
from rueda.torch import reductions

__all__ = [
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
]

Tensor = torch.Tensor


@translated
def grouped_allreduce(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """:func:`allreduce` of several tensors together: none is reduced before all are ready on all ranks.

    Their dtypes and shapes may differ. Returns the new tensors in the same order.

    Example::

        >>> hvd.grouped_allreduce([torch.ones(2), torch.zeros(1)], name="layer1")
        [tensor([1., 1.]), tensor([0.])]
    """
    wanted = chosen(op, average)
    sent = [compression.compress(tensor) for tensor in tensors]
    if isinstance(wanted, AdasumOp):
        handle = _grouped_adasum(
            [each for each, _ in sent], name, prescale_factor, postscale_factor, process_set, False
        )
        reduced = handle.result()
    else:
        reduced = reductions.grouped_allreduce(
            [each for each, _ in sent], name, wanted, prescale_factor, postscale_factor, process_set
        )
    return [
        compression.decompress(r, context) for r, (_, context) in zip(reduced, sent, strict=True)
    ]


@translated
def grouped_allreduce_async(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """:func:`grouped_allreduce` that returns one handle for all tensors at once.

    Example::

        >>> handle = hvd.grouped_allreduce_async([torch.ones(2), torch.zeros(1)], name="layer1")
        >>> hvd.synchronize(handle)
        [tensor([1., 1.]), tensor([0.])]
    """
    wanted = chosen(op, average)
    if isinstance(wanted, AdasumOp):
        return _grouped_adasum(tensors, name, prescale_factor, postscale_factor, process_set, False)
    return reductions.grouped_allreduce_async(
        tensors, name, wanted, prescale_factor, postscale_factor, process_set
    )


@translated
def grouped_allreduce_(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """:func:`grouped_allreduce` into the tensors themselves, which are returned. They must be contiguous.

    Example::

        >>> weight, bias = [torch.ones(2), torch.zeros(1)]
        >>> reduced = hvd.grouped_allreduce_([weight, bias], name="layer1")
        >>> reduced[0] is weight
        True
    """
    wanted = chosen(op, average)
    if isinstance(wanted, AdasumOp):
        handle = _grouped_adasum(
            tensors, name, prescale_factor, postscale_factor, process_set, True
        )
        return handle.result()
    return reductions.grouped_allreduce_(
        tensors, name, wanted, prescale_factor, postscale_factor, process_set
    )


@translated
def grouped_allreduce_async_(
    tensors: Iterable[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Tensor]]:
    """:func:`grouped_allreduce_` that returns one handle for all tensors at once.

    Example::

        >>> weight, bias = [torch.ones(2), torch.zeros(1)]
        >>> handle = hvd.grouped_allreduce_async_([weight, bias], name="layer1")
        >>> hvd.synchronize(handle)[0] is weight
        True
    """
    wanted = chosen(op, average)
    if isinstance(wanted, AdasumOp):
        return _grouped_adasum(tensors, name, prescale_factor, postscale_factor, process_set, True)
    return reductions.grouped_allreduce_async_(
        tensors, name, wanted, prescale_factor, postscale_factor, process_set
    )


def _grouped_adasum(
    tensors: Iterable[Tensor],
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
) -> Handle[list[Tensor]]:
    return combine(
        [
            adasum_async(
                tensor,
                part_name(name, number),
                prescale,
                postscale,
                process_set,
                tensor if in_place else None,
            )
            for number, tensor in enumerate(tensors)
        ]
    )
