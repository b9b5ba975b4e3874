"""allreduce with Horovod's signatures.

``average`` is Horovod's older form of ``op``. ``_async`` functions return a handle for :func:`synchronize` and
:func:`poll` immediately; those with a trailing underscore work in place. Every rank of ``process_set`` must take part.
If ranks disagree, or one of them cannot take part, every rank raises :class:`HorovodInternalError`.
"""

from __future__ import annotations

from typing import Any

import torch

from rueda.handles import Handle, transformed
from rueda.horovod.exceptions import translated
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.torch.adasum import adasum_async, without_gradient
from rueda.horovod.torch.compression import Compression, compressed
from rueda.horovod.torch.pending import begun, require_usable
from rueda.horovod.torch.reduce_ops import AdasumOp, Average, Op, Sum, chosen
from rueda.horovod.torch.whole_averages import divided, is_of_whole_numbers, ranks_of
from rueda.submission import NO_WIRE, Collectives
from rueda.torch import reductions
from rueda.torch.compression import wire_of
from rueda.torch.tensors import TorchAdapter

__all__ = ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_"]

Tensor = torch.Tensor
_collectives = Collectives(TorchAdapter(gpus=True))


def _narrows(tensor: Tensor, op: Op, compression: Any) -> bool:
    """Whether elements can be converted while they are packed, which saves two temporary tensors."""
    return (
        wire_of(compression) != NO_WIRE
        and isinstance(tensor, torch.Tensor)
        and op in (Average, Sum)
        and tensor.dtype in (torch.float32, torch.float64)
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
    )


@translated
def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduces ``tensor`` over the ranks into a new one, with gradients for Average and Sum.

    ``tensor``: any shape, the same on every rank, of any Rueda dtype, on the CPU or an NVIDIA GPU. ``compression``: the
    format in which it is sent. ``op``: Average (the default; integers are rounded towards zero), Sum, Min, Max, Product
    or Adasum. ``prescale_factor`` multiplies each rank's tensor, ``postscale_factor`` the result.

    Raises :class:`HorovodInternalError`. Immediately raises ``ValueError`` on this rank only before ``init()``, for
    ``op`` together with ``average``, outside ``process_set``, and while another tensor of this ``name`` is pending.

    Example::

        >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum, name="loss")  # of one rank
        tensor([1., 2.])
    """
    wanted = chosen(op, average)
    factors = prescale_factor, postscale_factor
    if not isinstance(wanted, AdasumOp) and _narrows(tensor, wanted, compression):
        require_usable(name, process_set)
        wire = wire_of(compression)
        return _collectives.allreduce(
            tensor, name, wanted, *factors, process_set, wire=wire
        ).result()
    sent, context = compressed(tensor, compression)
    if isinstance(wanted, AdasumOp):
        (reduced,) = without_gradient(
            lambda: [_begun(sent, name, wanted, *factors, process_set, False).result()], [sent]
        )
    elif is_of_whole_numbers(sent, wanted):
        reduced = _begun(sent, name, wanted, *factors, process_set, False).result()
    else:
        require_usable(name, process_set)
        reduced = reductions.allreduce(sent, name, wanted, *factors, process_set)
    result: Tensor = compression.decompress(reduced, context)
    return result


@translated
def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """:func:`allreduce` that returns a handle immediately. ``tensor`` must not be written meanwhile.

    Example::

        >>> handle = hvd.allreduce_async(torch.ones(2), name="layer1")
        >>> hvd.synchronize(handle)
        tensor([1., 1.])
    """
    wanted = chosen(op, average)
    return _begun(tensor, name, wanted, prescale_factor, postscale_factor, process_set, False)


@translated
def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """:func:`allreduce` in place: overwrites ``tensor``, which must be contiguous, and returns it.

    Example::

        >>> gradient = torch.ones(2)
        >>> hvd.allreduce_(gradient, name="layer1") is gradient
        True
    """
    wanted = chosen(op, average)
    if isinstance(wanted, AdasumOp) or is_of_whole_numbers(tensor, wanted):
        handle = _begun(tensor, name, wanted, prescale_factor, postscale_factor, process_set, True)
        return handle.result()
    require_usable(name, process_set)
    return reductions.allreduce_(
        tensor, name, wanted, prescale_factor, postscale_factor, process_set
    )


@translated
def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Tensor]:
    """:func:`allreduce_` that returns a handle immediately. ``tensor`` must be neither read nor written meanwhile.

    Example::

        >>> gradient = torch.ones(2)
        >>> handle = hvd.allreduce_async_(gradient, name="layer1")
        >>> hvd.synchronize(handle) is gradient
        True
    """
    wanted = chosen(op, average)
    return _begun(tensor, name, wanted, prescale_factor, postscale_factor, process_set, True)


def _begun(
    tensor: Tensor,
    name: str | None,
    op: Op,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
) -> Handle[Tensor]:
    def submit() -> Handle[Tensor]:
        if isinstance(op, AdasumOp):
            target = tensor if in_place else None
            return adasum_async(tensor, name, prescale, postscale, process_set, target)
        begin = reductions.allreduce_async_ if in_place else reductions.allreduce_async
        if is_of_whole_numbers(tensor, op):
            total = begin(tensor, name, Sum, prescale, 1.0, process_set)
            ranks = ranks_of(process_set)
            return transformed(total, lambda sums: divided(sums, postscale, ranks))
        return begin(tensor, name, op, prescale, postscale, process_set)

    return begun(submit, name, process_set)
