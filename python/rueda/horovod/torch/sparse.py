"""Sparse tensors with Horovod's signature."""

from __future__ import annotations

import torch

from rueda.handles import Handle
from rueda.horovod.exceptions import translated
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.torch.pending import begun
from rueda.horovod.torch.reduce_ops import Op, element_wise
from rueda.torch import sparse

__all__ = ["SparseHandle", "sparse_allreduce_async"]

Tensor = torch.Tensor


class SparseHandle:
    """The result of :func:`sparse_allreduce_async`: call it, as in Horovod, or pass it to :func:`synchronize`."""

    def __init__(self, handle: Handle[Tensor]) -> None:
        self.handle = handle

    @translated
    def __call__(self) -> Tensor:
        return self.handle.result()


@translated
def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: Op, process_set: ProcessSet = global_process_set
) -> SparseHandle:
    """Sums or averages sparse tensors; call the returned handle for the result, which is coalesced.

    ``tensor``: of layout ``torch.sparse_coo``; its number of values may differ between ranks and be 0.

    Example::

        >>> gradient = torch.sparse_coo_tensor([[0, 2]], [1.0, 3.0], (4,))
        >>> handle = hvd.sparse_allreduce_async(gradient, name="table", op=hvd.Average)
        >>> hvd.synchronize(handle).to_dense()
        tensor([1., 0., 3., 0.])
    """
    wanted = element_wise(op)
    handle = begun(
        lambda: sparse.sparse_allreduce_async(tensor, name, wanted, process_set), name, process_set
    )
    return SparseHandle(handle)
