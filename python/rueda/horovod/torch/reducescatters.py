"""reducescatter with Horovod's signatures, which differ from those of allreduce."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rueda.handles import Handle, combine, transformed
from rueda.horovod.exceptions import translated
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.torch.compression import Compression, compressed
from rueda.horovod.torch.pending import begun, require_usable
from rueda.horovod.torch.reduce_ops import Average, Op, Sum, element_wise
from rueda.horovod.torch.whole_averages import divided, is_of_whole_numbers, ranks_of
from rueda.operations import ReduceOp
from rueda.submission import part_name
from rueda.torch import reductions
from rueda.torch.autograd import GroupedReducescatter

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
    """Reduces like :func:`allreduce`, then leaves each rank its rows of the first dimension, with gradients.

    ``tensor``: at least one dimension. Rows are split as evenly as possible; the first ranks get one more.

    Example::

        >>> hvd.reducescatter(torch.ones((3, 2)), op=hvd.Sum, name="layer1").shape  # all rows, of one rank
        torch.Size([3, 2])
    """
    sent, context = compressed(tensor, compression)
    wanted = element_wise(op)
    if is_of_whole_numbers(sent, wanted):
        handle = _begun(sent, name, wanted, prescale_factor, postscale_factor, process_set)
        reduced = handle.result()
    else:
        require_usable(name, process_set)
        reduced = reductions.reducescatter(
            sent, name, wanted, prescale_factor, postscale_factor, process_set
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
    """:func:`reducescatter` that returns a handle immediately. ``tensor`` must not be written meanwhile.

    Example::

        >>> handle = hvd.reducescatter_async(torch.ones(2), name="layer1")
        >>> hvd.synchronize(handle)
        tensor([1., 1.])
    """
    wanted = element_wise(op)
    return begun(
        lambda: _begun(tensor, name, wanted, prescale_factor, postscale_factor, process_set),
        name,
        process_set,
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
    """:func:`reducescatter` of several tensors; tensor i is named ``name.i``.

    All are in flight together, except that averages of floats in a group with integers are reduced one by one.

    Example::

        >>> hvd.grouped_reducescatter([torch.ones(2), torch.zeros(1)], name="layer1")
        [tensor([1., 1.]), tensor([0.])]
    """
    sent = [compressed(tensor, compression) for tensor in tensors]
    wanted = element_wise(op)
    group = [each for each, _ in sent]
    factors = (prescale_factor, postscale_factor)
    if any(is_of_whole_numbers(tensor, wanted) for tensor in group):
        require_usable(name, process_set, len(group))
        reduced = _mixed(group, name, wanted, *factors, process_set)
    else:
        require_usable(name, process_set, len(group))
        reduced = GroupedReducescatter.apply(name, wanted, *factors, process_set, *group)  # type: ignore[no-untyped-call]
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
    """:func:`grouped_reducescatter` that immediately returns one handle for all tensors.

    Example::

        >>> handle = hvd.grouped_reducescatter_async([torch.ones(2), torch.zeros(1)], name="layer1")
        >>> hvd.synchronize(handle)
        [tensor([1., 1.]), tensor([0.])]
    """
    wanted = element_wise(op)
    group = list(tensors)
    factors = (prescale_factor, postscale_factor)
    return begun(
        lambda: _begun_group(group, name, wanted, *factors, process_set),
        name,
        process_set,
        len(group),
    )


def _begun(
    tensor: Tensor,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle[Tensor]:
    if is_of_whole_numbers(tensor, op):
        total = reductions.reducescatter_async(tensor, name, Sum, prescale, 1.0, process_set)
        ranks = ranks_of(process_set)
        return transformed(total, lambda rows: divided(rows, postscale, ranks))
    return reductions.reducescatter_async(tensor, name, op, prescale, postscale, process_set)


def _mixed(
    tensors: Sequence[Tensor],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Reduces tensors some of which hold integers; gradients flow through the others, reduced one by one."""

    def begin(number: int) -> Handle[Tensor]:
        part = part_name(name, number)
        return _begun(tensors[number], part, op, prescale, postscale, process_set)

    numbers = range(len(tensors))
    handles = {n: begin(n) for n in numbers if is_of_whole_numbers(tensors[n], op)}
    floats = [n for n in numbers if n not in handles]
    parts: dict[int, Tensor] = {}
    try:
        while floats:
            number = floats.pop(0)
            part = part_name(name, number)
            parts[number] = reductions.reducescatter(
                tensors[number], part, op, prescale, postscale, process_set
            )
    finally:
        # Even after a failure, other ranks wait for all parts.
        handles |= {number: begin(number) for number in floats}
        for handle in handles.values():
            handle.wait()
    return [parts[n] if n in parts else handles[n].result() for n in numbers]


def _begun_group(
    tensors: Sequence[Tensor],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle[list[Tensor]]:
    return combine(
        [
            _begun(tensor, part_name(name, number), op, prescale, postscale, process_set)
            for number, tensor in enumerate(tensors)
        ]
    )
