"""Sums of sparse tensors over the ranks: what each rank has is gathered, and duplicates add up.

Indices and values travel in one operation, as rows of bytes. So a rank that has a dense tensor under the same name
is noticed as any other difference between ranks.
"""

from __future__ import annotations

import math

import torch

from rueda import _native
from rueda.adapter import Refusal
from rueda.errors import MismatchError
from rueda.handles import Handle, transformed
from rueda.operations import Average, ReduceOp, Sum
from rueda.process_sets import ProcessSet, global_process_set
from rueda.submission import Collectives, refuse
from rueda.torch.compression import Compression, Compressor
from rueda.torch.tensors import TorchAdapter, code_of

__all__ = ["no_rows", "packed", "sparse_allreduce_async", "unpacked"]

_collectives = Collectives(TorchAdapter())
INDEX_BYTES = 8


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    compression: Compressor = Compression.none,
) -> Handle[torch.Tensor]:
    """The sum or the average of the ranks' sparse tensors, as a handle.

    ``tensor``: of layout ``torch.sparse_coo`` in the CPU's memory, coalesced or not; how many values it has may differ
    between ranks, also be 0. Shape, ``sparse_dim`` and dtype must agree. The result is not coalesced. ``compression``
    is for the values. An average divides by the ranks that contributed, or by all of the set, as that of a dense tensor
    does (``RUEDA_JOIN_AVERAGE``).

    Raises, through the handle and on every rank, :class:`rueda.MismatchError` where the tensors differ and
    :class:`rueda.InvalidArgumentError` for another op.

    Example::

        >>> gradient = torch.sparse_coo_tensor([[0, 2]], [1.0, 3.0], (4,))
        >>> handle = rueda.torch.sparse_allreduce_async(gradient, name="table")
        >>> handle.result().to_dense()
        tensor([1., 0., 3., 0.])
    """
    try:
        if op not in (Average, Sum):
            raise Refusal(f"op={op!r}: sparse tensors are averaged or summed")
        if tensor.layout != torch.sparse_coo:
            raise Refusal(f"the tensor's layout is {tensor.layout}, not torch.sparse_coo", True)
        if code_of(tensor.dtype) is None or tensor.device.type != "cpu":
            raise Refusal(f"sparse {tensor.dtype} on '{tensor.device}' is not supported", True)
    except Refusal as refusal:
        return refuse(name, process_set, refusal)  # type: ignore[return-value]  # never returns
    like = tensor.detach()
    values, dtype = compression.compress(like._values())
    gathered = _collectives.allgather(packed(like, values), name, process_set)

    def finish(rows: torch.Tensor) -> torch.Tensor:
        indices, received, contributors = unpacked(rows, like, values.dtype, name)
        received = compression.decompress(received, dtype)
        if op == Average:
            ranks = contributors
            if _native.options()["join_average"] == "all":
                ranks = process_set.size()
            received = received / ranks if dtype.is_floating_point else received // ranks
        return torch.sparse_coo_tensor(
            indices, received.to(like.dtype), like.shape, check_invariants=True
        )

    return transformed(gathered, finish)


def no_rows(like: torch.Tensor, sparse_dimensions: int) -> torch.Tensor:
    """A sparse tensor of zeros, with the shape and dtype of ``like``, whose first dimensions are the sparse ones."""
    indices = torch.empty(sparse_dimensions, 0, dtype=torch.int64)
    values = torch.empty(0, *like.shape[sparse_dimensions:], dtype=like.dtype)
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=True)


def packed(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One row of bytes for each value, and before them one that tells the extents, as negative indices."""
    dimensions, width = tensor.sparse_dim(), math.prod(values.shape[1:])
    extents = torch.tensor([[-1 - extent for extent in tensor.shape[:dimensions]]])
    indices = torch.cat([extents, tensor._indices().t()]).contiguous()
    rows = torch.cat([values.new_zeros(1, width), values.reshape(len(values), width)])
    return torch.cat([indices.view(torch.uint8), rows.view(torch.uint8)], dim=1)


def unpacked(
    rows: torch.Tensor, like: torch.Tensor, dtype: torch.dtype, name: str | None
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Indices, values, and how many ranks have sent some."""
    split = like.sparse_dim() * INDEX_BYTES
    # Copies: a part of a single row counts as contiguous, with the stride of the whole.
    indices = rows[:, :split].clone(memory_format=torch.contiguous_format).view(torch.int64)
    heads = indices[:, 0] < 0
    extents = (-1 - indices[heads]).tolist()
    if any(other != extents[0] for other in extents):
        told = ", ".join(str(extent) for extent in extents)
        raise MismatchError(
            f"'{name}': the sparse tensors' extents differ between ranks: {told}",
            tensor=name,
            field="shape",
            values=tuple(str(extent) for extent in extents),
        )
    values = rows[:, split:].clone(memory_format=torch.contiguous_format).view(dtype)[~heads]
    return indices[~heads].t(), values.reshape(-1, *like.shape[like.sparse_dim() :]), len(extents)
