"""Gradients through collectives, as Horovod defines them.

Each rank has its own loss, and training minimises the mean over ranks. So the gradient of a rank's contribution to
every rank's result is the average of the gradients of those results. A sum and an average use the same reduction in the
backward pass.

The backward pass uses these functions as well, so gradients can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from rueda.compression import Codec
from rueda.errors import UnsupportedError
from rueda.handles import Handle, combine
from rueda.lifecycle import rank
from rueda.operations import Average, ReduceOp, Sum
from rueda.process_sets import ProcessSet
from rueda.submission import Collectives, part_name
from rueda.torch.tensors import TorchAdapter, reduce_now

__all__ = [
    "Allgather",
    "Allreduce",
    "Alltoall",
    "Broadcast",
    "GroupedAllreduce",
    "GroupedReducescatter",
    "Reducescatter",
    "grouped_reducescatters",
    "name_of_gradient",
]

_collectives = Collectives(TorchAdapter(gpus=True))
Gradient = torch.Tensor | None


def name_of_gradient(name: str | None) -> str | None:
    """The name of the operation that reduces the gradient of the one with this name."""
    return None if name is None else f"{name}.gradient"


def _reduced(
    tensor: torch.Tensor,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    compression: Codec | str | None,
) -> torch.Tensor:
    """The allreduce of a tensor as a new one."""
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.is_cpu
    if compression is None and is_plain and tensor.is_contiguous():
        result: torch.Tensor | None = None
        with suppress(Exception):  # of an odd tensor: every rank gets the error below
            result = torch.empty_like(tensor)
        if result is not None and reduce_now(
            tensor, result, name, op, prescale, postscale, process_set
        ):
            return result
    return _collectives.allreduce(
        tensor, name, op, prescale, postscale, process_set, compression=compression
    ).result()


def _check_linear(op: ReduceOp) -> None:
    if op not in (Average, Sum):
        raise UnsupportedError(
            f"no gradient is defined through {ReduceOp(op).name.lower()}: use Sum or Average, or detach()"
        )


class Allreduce(torch.autograd.Function):
    """The gradient is reduced in the same way, with the same factors."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        compression: Codec | str | None = None,
    ) -> torch.Tensor:
        """Reduces."""
        ctx.arguments = (name_of_gradient(name), op, prescale, postscale, process_set, compression)
        return _reduced(tensor, name, op, prescale, postscale, process_set, compression)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Gradient, ...]:
        """Reduces the gradient."""
        _check_linear(ctx.arguments[1])
        reduced = Allreduce.apply(gradients[0], *ctx.arguments)  # type: ignore[no-untyped-call]
        return reduced, None, None, None, None, None, None


class GroupedAllreduce(torch.autograd.Function):
    """Like Allreduce, for several tensors together."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        compression: Codec | str | None,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduces."""
        ctx.arguments = (name_of_gradient(name), op, prescale, postscale, process_set, compression)
        handle = _collectives.grouped_allreduce(
            tensors, name, op, prescale, postscale, process_set, compression=compression
        )
        return tuple(handle.result())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Gradient, ...]:
        """Reduces the gradients."""
        _check_linear(ctx.arguments[1])
        reduced = GroupedAllreduce.apply(*ctx.arguments, *gradients)  # type: ignore[no-untyped-call]
        return None, None, None, None, None, None, *reduced


class Allgather(torch.autograd.Function):
    """The gradient is this rank's rows of the average of all ranks' gradients."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        """Gathers."""
        gathered = _collectives.allgather(tensor, name, process_set, blocking=True).result()
        ctx.rows = tensor.shape[0]  # safe now: a tensor that was gathered has a dimension
        ctx.arguments = (name_of_gradient(name), process_set)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Gradient, ...]:
        """Averages, then keeps the rows that this rank contributed."""
        name, process_set = ctx.arguments
        rows_name = None if name is None else f"{name}.rows"
        rows = torch.tensor([ctx.rows], dtype=torch.int64, device="cpu")
        all_rows = _collectives.allgather(rows, rows_name, process_set)
        average = Allreduce.apply(gradients[0], name, Average, 1.0, 1.0, process_set)  # type: ignore[no-untyped-call]
        start = int(all_rows.result()[: process_set.rank()].sum())
        return average.narrow(0, start, ctx.rows), None, None


class Broadcast(torch.autograd.Function):
    """The root's gradient is the average of all ranks' gradients; the others contributed nothing."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        """Broadcasts."""
        ctx.arguments = (root_rank, name_of_gradient(name), process_set)
        return _collectives.broadcast(tensor, root_rank, name, process_set, blocking=True).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Gradient, ...]:
        """Averages at the root."""
        root_rank, name, process_set = ctx.arguments
        average = Allreduce.apply(gradients[0], name, Average, 1.0, 1.0, process_set)  # type: ignore[no-untyped-call]
        if rank() != root_rank:
            average.zero_()
        return average, None, None, None


class Reducescatter(torch.autograd.Function):
    """The gradient is the concatenation of all ranks' gradients; times the number of ranks for a sum."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        splits: list[int] | None,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        """Reduces and scatters."""
        ctx.arguments = (name_of_gradient(name), process_set)
        ctx.op = op
        ctx.factor = prescale * postscale
        return _collectives.reducescatter(
            tensor, name, op, prescale, postscale, splits, process_set, blocking=True
        ).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Gradient, ...]:
        """Gathers the gradients."""
        _check_linear(ctx.op)
        name, process_set = ctx.arguments
        factor = ctx.factor * (process_set.size() if ctx.op == Sum else 1)
        gathered = Allgather.apply(gradients[0] * factor, name, process_set)  # type: ignore[no-untyped-call]
        return gathered, None, None, None, None, None, None


def grouped_reducescatters(
    tensors: Iterable[torch.Tensor],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Handle[list[torch.Tensor]]:
    """Starts the reducescatter of several tensors; number i is named ``name.i``."""
    return combine(
        [
            _collectives.reducescatter(
                tensor, part_name(name, number), op, prescale, postscale, None, process_set
            )
            for number, tensor in enumerate(tensors)
        ]
    )


class GroupedReducescatter(torch.autograd.Function):
    """Like Reducescatter, for several tensors together."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Reduces and scatters."""
        ctx.arguments = (name_of_gradient(name), process_set)
        ctx.op = op
        ctx.factor = prescale * postscale
        handle = grouped_reducescatters(tensors, name, op, prescale, postscale, process_set)
        return tuple(handle.result())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Gradient, ...]:
        """Gathers the gradients."""
        _check_linear(ctx.op)
        name, process_set = ctx.arguments
        factor = ctx.factor * (process_set.size() if ctx.op == Sum else 1)
        scaled = [gradient * factor for gradient in gradients]
        if torch.is_grad_enabled():  # the gradient may be differentiated again
            gathered = [
                Allgather.apply(each, part_name(name, number), process_set)  # type: ignore[no-untyped-call]
                for number, each in enumerate(scaled)
            ]
        else:
            gathered = _collectives.grouped_allgather(scaled, name, process_set).result()
        return None, None, None, None, None, *gathered


class Alltoall(torch.autograd.Function):
    """The gradient's rows go back to the ranks that sent the rows."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: list[int] | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Exchanges rows."""
        handle = _collectives.alltoall_with_counts(tensor, splits, name, process_set, blocking=True)
        received, counts = handle.result()
        ctx.mark_non_differentiable(counts)
        ctx.arguments = (name_of_gradient(name), process_set)
        ctx.counts = counts.tolist()
        return received, counts

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Gradient, ...]:
        """Exchanges rows of the gradient in the opposite direction."""
        name, process_set = ctx.arguments
        sent_back, _ = Alltoall.apply(gradients[0], ctx.counts, name, process_set)  # type: ignore[no-untyped-call]
        return sent_back, None, None, None
