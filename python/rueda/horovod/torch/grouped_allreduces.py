"""allreduce of several tensors together, with Horovod's signatures. For each tensor, see allreduce."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from rueda.handles import Handle, combine, transformed
from rueda.horovod.exceptions import translated
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.torch.adasum import adasum_async, without_gradient
from rueda.horovod.torch.compression import Compression, compressed
from rueda.horovod.torch.pending import begun, require_usable
from rueda.horovod.torch.reduce_ops import AdasumOp, Average, Op, Sum, chosen
from rueda.horovod.torch.whole_averages import divided, is_of_whole_numbers, ranks_of
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
    sent = [compressed(tensor, compression) for tensor in tensors]
    group = [each for each, _ in sent]
    factors = (prescale_factor, postscale_factor)
    if isinstance(wanted, AdasumOp):
        reduced = without_gradient(
            lambda: _begun(group, name, wanted, *factors, process_set, False).result(), group
        )
    elif _has_whole_numbers(group, wanted):
        require_usable(name, process_set, len(group))
        reduced = _averages_now(group, name, *factors, process_set)
    else:
        require_usable(name, process_set, len(group))
        reduced = reductions.grouped_allreduce(group, name, wanted, *factors, process_set)
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
    """:func:`grouped_allreduce` that immediately returns one handle for all tensors.

    Example::

        >>> handle = hvd.grouped_allreduce_async([torch.ones(2), torch.zeros(1)], name="layer1")
        >>> hvd.synchronize(handle)
        [tensor([1., 1.]), tensor([0.])]
    """
    wanted = chosen(op, average)
    group = list(tensors)
    return _begun(group, name, wanted, prescale_factor, postscale_factor, process_set, False)


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
    """:func:`grouped_allreduce` in place: overwrites the tensors, which must be contiguous, and returns them.

    Example::

        >>> weight, bias = [torch.ones(2), torch.zeros(1)]
        >>> reduced = hvd.grouped_allreduce_([weight, bias], name="layer1")
        >>> reduced[0] is weight
        True
    """
    wanted = chosen(op, average)
    group = list(tensors)
    return _begun(
        group, name, wanted, prescale_factor, postscale_factor, process_set, True
    ).result()


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
    """:func:`grouped_allreduce_` that immediately returns one handle for all tensors.

    Example::

        >>> weight, bias = [torch.ones(2), torch.zeros(1)]
        >>> handle = hvd.grouped_allreduce_async_([weight, bias], name="layer1")
        >>> hvd.synchronize(handle)[0] is weight
        True
    """
    wanted = chosen(op, average)
    group = list(tensors)
    return _begun(group, name, wanted, prescale_factor, postscale_factor, process_set, True)


def _has_whole_numbers(tensors: Sequence[Tensor], op: Op) -> bool:
    return any(is_of_whole_numbers(tensor, op) for tensor in tensors)


def _begun(
    tensors: Sequence[Tensor],
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
) -> Handle[list[Tensor]]:
    def submit() -> Handle[list[Tensor]]:
        if isinstance(op, AdasumOp):
            return _grouped_adasum(tensors, name, prescale, postscale, process_set, in_place)
        begin = (
            reductions.grouped_allreduce_async_ if in_place else reductions.grouped_allreduce_async
        )
        if _has_whole_numbers(tensors, op):
            return _grouped_averages(begin, tensors, name, prescale, postscale, process_set)
        return begin(tensors, name, op, prescale, postscale, process_set)

    return begun(submit, name, process_set, len(tensors))


def _grouped_averages(
    begin: Callable[..., Handle[list[Tensor]]],
    tensors: Sequence[Tensor],
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle[list[Tensor]]:
    """Averages tensors some of which hold integers; the integer tensors form a separate group."""
    parts = _Parts(tensors, name)
    totals = begin(parts.whole, name, Sum, prescale, 1.0, process_set)
    ranks = ranks_of(process_set)
    both = combine(
        [
            transformed(totals, lambda found: _divided(found, postscale, ranks)),
            begin(parts.others, parts.others_name, Average, prescale, postscale, process_set),
        ]
    )
    return transformed(both, lambda results: parts.in_order(*results))


def _averages_now(
    tensors: Sequence[Tensor],
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Like :func:`_grouped_averages`, into new tensors; gradients flow through the non-integer tensors."""
    parts = _Parts(tensors, name)
    totals = reductions.grouped_allreduce_async(parts.whole, name, Sum, prescale, 1.0, process_set)
    ranks = ranks_of(process_set)
    try:
        others = reductions.grouped_allreduce(
            parts.others, parts.others_name, Average, prescale, postscale, process_set
        )
    finally:
        totals.wait()
    return parts.in_order(_divided(totals.result(), postscale, ranks), others)


def _divided(totals: Iterable[Tensor], postscale: float, ranks: int) -> list[Tensor]:
    return [divided(total, postscale, ranks) for total in totals]


class _Parts:
    """Splits a group of tensors to average into integer tensors and others."""

    def __init__(self, tensors: Sequence[Tensor], name: str | None) -> None:
        numbers: dict[bool, list[int]] = {True: [], False: []}
        for number, tensor in enumerate(tensors):
            numbers[is_of_whole_numbers(tensor, Average)].append(number)
        self.whole = [tensors[number] for number in numbers[True]]
        self.others = [tensors[number] for number in numbers[False]]
        self.others_name = None if name is None else f"{name}.others"
        self._order = numbers[True] + numbers[False]

    def in_order(self, whole: list[Tensor], others: list[Tensor]) -> list[Tensor]:
        """Returns the results in the order of the tensors."""
        found = dict(zip(self._order, whole + others, strict=True))
        return [found[number] for number in range(len(found))]


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
