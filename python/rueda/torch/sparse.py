"""Sums of sparse tensors over the ranks.

``sparse_steps.py`` has the exchanges, ``sparse_choice.py`` chooses the algorithm, and ``docs/sparse.md`` says what they
cost.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from rueda import _native
from rueda.adapter import Refusal
from rueda.arguments import text_of
from rueda.errors import DuplicateNameError
from rueda.handles import Handle
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet, global_process_set, identify
from rueda.submission import refuse
from rueda.torch.autograd import name_of_gradient
from rueda.torch.completions import Completions
from rueda.torch.compression import Compression, Compressor
from rueda.torch.phases import Phased
from rueda.torch.sparse_choice import SparseChoice
from rueda.torch.sparse_steps import SparseAllreduce

__all__ = [
    "SparseHandle",
    "begun",
    "no_rows",
    "sparse_allreduce",
    "sparse_allreduce_async",
]

_completions = Completions("rueda-sparse")
# The newest operation of each set and name: the names of its exchanges become free once it has ended.
_newest: weakref.WeakValueDictionary[tuple[int, str], SparseHandle] = weakref.WeakValueDictionary()


class SparseHandle(Phased[torch.Tensor]):
    """The handle that :func:`sparse_allreduce_async` returns.

    Example::

        >>> handle = rueda.torch.sparse_allreduce_async(torch.eye(2).to_sparse(1), name="table")
        >>> handle.wait(), handle.choice.algorithm
        (True, 'gather')
    """

    def __init__(
        self, how: SparseAllreduce, tensor: torch.Tensor, completions: Completions | None
    ) -> None:
        self.choice: SparseChoice | None = None
        """By which algorithm it is done, once the ranks have agreed on that."""
        super().__init__(how.steps(tensor, self._learn), completions)

    def _learn(self, choice: SparseChoice) -> None:
        self.choice = choice


def begun(how: SparseAllreduce, tensor: torch.Tensor, alone: bool = True) -> SparseHandle:
    """Starts a sparse allreduce. ``alone``: it advances even if nobody waits for it.

    Raises Refusal, and :class:`rueda.DuplicateNameError` on a rank that reuses a pending name.
    """
    key = identify(how.process_set), how.name
    before = _newest.get(key) if how.name else None  # type: ignore[arg-type]
    if before is not None and not before.done():
        raise DuplicateNameError(
            f"'{how.name}' was submitted on rank {_native.rank()} before and is still pending: wait for its "
            f"handle, or use another name",
            _native.rank(),
            tensor=how.name,
        )
    handle = SparseHandle(how, tensor, _completions if alone else None)
    if how.name:
        _newest[key] = handle  # type: ignore[index]
    return handle


def sparse_allreduce(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    compression: Compressor | None = Compression.none,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    algorithm: str = "auto",
) -> torch.Tensor:
    """The sum or the average of the ranks' sparse tensors; every rank gets the same bits.

    ``tensor``: of layout ``torch.sparse_coo``, in CPU memory, with any of the 15 dtypes, coalesced or not; its number
    of values may differ between ranks, and may be 0. Shape, ``sparse_dim``, dtype and all arguments must agree.
    ``compression`` applies to the values: ``rueda.torch.Compression.fp16``, ``bf16`` or a compressor of your own, not a
    codec; ``None`` is none. ``prescale_factor`` multiplies each rank's values, ``postscale_factor`` the
    result; integers cannot be scaled. An average divides by the number of ranks that contributed, or by the size of the
    set, as for a dense tensor (``RUEDA_JOIN_AVERAGE``). ``algorithm``: ``"gather"``, ``"split"`` or ``"dense"``
    overrides :func:`choose_sparse_algorithm`.

    Returns a new coalesced tensor with a value wherever a rank has one. Sums of 16-bit floats are formed in float32 and
    rounded once on each rank that adds. Gradients flow through, as for :func:`allreduce`: they go through the same
    reduction, as sparse tensors with the same ``sparse_dim``.

    Raises, on every rank, :class:`rueda.MismatchError` if the tensors or arguments differ,
    :class:`rueda.InvalidArgumentError` for another op, an index outside the tensor and a dense tensor for which a rank
    has no memory, and :class:`rueda.UnsupportedError`.

    Example::

        >>> gradient = torch.sparse_coo_tensor([[0, 2]], [1.0, 3.0], (4,))
        >>> rueda.torch.sparse_allreduce(gradient, name="table").to_dense()
        tensor([1., 0., 3., 0.])
    """
    arguments = name, op, process_set, compression, (prescale_factor, postscale_factor), algorithm
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = _Differentiable.apply(tensor, *arguments)  # type: ignore[no-untyped-call]
        return result
    return _begun(tensor, *arguments, alone=False).result()


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    compression: Compressor | None = Compression.none,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    algorithm: str = "auto",
) -> Handle[torch.Tensor]:
    """:func:`sparse_allreduce` that returns a handle immediately. ``tensor`` may be written meanwhile.

    Gradients do not flow through.

    The handle's ``choice`` says which algorithm is used. The handle raises the operation's errors.

    Example::

        >>> gradient = torch.sparse_coo_tensor([[0, 2]], [1.0, 3.0], (4,))
        >>> handle = rueda.torch.sparse_allreduce_async(gradient, name="table")
        >>> handle.result().to_dense()
        tensor([1., 0., 3., 0.])
    """
    factors = prescale_factor, postscale_factor
    return _begun(tensor, name, op, process_set, compression, factors, algorithm, alone=True)


def _begun(
    tensor: torch.Tensor,
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet,
    compression: Compressor | None,
    factors: tuple[float, float],
    algorithm: str,
    alone: bool,
) -> Handle[torch.Tensor]:
    try:
        label = text_of(name) or None
        compressor = Compression.none if compression is None else compression
        how = SparseAllreduce(label, op, factors, process_set, compressor, algorithm, copies=alone)
        return begun(how, tensor, alone)
    except Refusal as refusal:
        return refuse(name, process_set, refusal)  # type: ignore[return-value]  # never returns


class _Differentiable(torch.autograd.Function):
    """The gradient is reduced in the same way, see ``autograd.py``."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: ReduceOp,
        process_set: ProcessSet,
        compression: Compressor | None,
        factors: tuple[float, float],
        algorithm: str,
    ) -> torch.Tensor:
        """Reduces."""
        arguments = op, process_set, compression, factors, algorithm
        ctx.arguments = (name_of_gradient(name), *arguments)
        ctx.sparse_dimensions = tensor.sparse_dim() if tensor.layout == torch.sparse_coo else 0
        return _begun(tensor, name, *arguments, alone=False).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        """Reduces the gradient, which may be sparse on some ranks and dense on others."""
        (gradient,) = gradients
        count = ctx.sparse_dimensions
        if gradient.layout != torch.sparse_coo or gradient.sparse_dim() != count:
            gradient = gradient.to_dense().to_sparse(count)
        reduced = _Differentiable.apply(gradient, *ctx.arguments)  # type: ignore[no-untyped-call]
        return reduced, None, None, None, None, None, None


def no_rows(like: torch.Tensor, sparse_dimensions: int) -> torch.Tensor:
    """A sparse tensor of zeros with the shape and dtype of ``like``, whose first dimensions are the sparse ones."""
    indices = torch.empty(sparse_dimensions, 0, dtype=torch.int64, device=like.device)
    values = torch.empty(0, *like.shape[sparse_dimensions:], dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(
        indices, values, like.shape, device=like.device, check_invariants=True
    )
