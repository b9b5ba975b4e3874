"""DistributedOptimizer with Horovod's signature, based on rueda.torch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

import rueda.process_sets
from rueda.errors import InvalidArgumentError
from rueda.horovod.basics import size
from rueda.horovod.exceptions import HorovodUsageError, translated, translating
from rueda.horovod.process_sets import ProcessSet, global_process_set
from rueda.horovod.torch.adasum_optimizer import distribute_by_adasum
from rueda.horovod.torch.compression import Compression, FP16Compressor, NoneCompressor
from rueda.horovod.torch.reduce_ops import AdasumOp, Average, Op, Sum
from rueda.operations import ReduceOp
from rueda.torch.compiling import never_compiled
from rueda.torch.optimizer import Distributed
from rueda.torch.optimizer import DistributedOptimizer as _DistributedOptimizer

__all__ = ["DistributedOptimizer", "HorovodDistributed"]


@never_compiled
class HorovodDistributed(Distributed):
    """The methods that DistributedOptimizer() mixes into the optimizer's class."""

    @property
    def backward_passes_per_step(self) -> int:
        """Number of backward passes per step; setting it calls set_backward_passes_per_step()."""
        return self._rueda.passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    @property
    def op(self) -> ReduceOp:
        """See DistributedOptimizer()."""
        return self._rueda.options.op

    @property
    def gradient_predivide_factor(self) -> float:
        """See DistributedOptimizer()."""
        return self._rueda.options.predivide_factor

    @property
    def sparse_as_dense(self) -> bool:
        """See DistributedOptimizer()."""
        return self._rueda.options.sparse_as_dense

    @property
    def process_set(self) -> rueda.process_sets.ProcessSet:
        """See DistributedOptimizer()."""
        return self._rueda.options.process_set

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """See rueda.torch.DistributedOptimizer. Warns, like Horovod, if synchronize() was called before it."""
        if closure is None and self._rueda_synchronizes and self._rueda.synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(). The gradients are not reduced again here, but they are by Horovod: "
                "use optimizer.skip_synchronize() in a program that is to run on both",
                stacklevel=2,
            )
        with translating():
            return super().step(closure)

    def synchronize(self) -> None:
        """See rueda.torch.DistributedOptimizer."""
        with translating():
            super().synchronize()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See rueda.torch.DistributedOptimizer. Its error is also an AssertionError, as in Horovod."""
        try:
            super().zero_grad(set_to_none)
        except InvalidArgumentError as error:
            raise HorovodUsageError(str(error)) from error


# torch wraps each class's step() to run the application's hooks; the optimizer's own class is wrapped already.
HorovodDistributed.step.hooked = True  # type: ignore[attr-defined]


@translated
def DistributedOptimizer(  # noqa: N802 - Horovod's name, used like a class
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Op = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns an optimizer like ``optimizer`` whose step() uses the gradients of all ranks.

    Each gradient is reduced as soon as backward() has computed it. To clip gradients, wait for them by
    ``optimizer.synchronize()``, then call step() within ``with optimizer.skip_synchronize():``; outside it warns.

    - ``named_parameters``: usually ``model.named_parameters()``; the same names on every rank.
    - ``compression``: how gradients are sent, such as ``hvd.Compression.fp16``.
    - ``backward_passes_per_step``: sums the gradients of that many passes, then reduces them.
    - ``op``: Average, Sum or Adasum. With Adasum each rank takes its own step, and the steps are combined.
    - ``gradient_predivide_factor`` f: with Average, divides by f before the sum and by size/f after it.
    - ``groups``: gradients to reduce together: a number of groups, or lists of parameters. ``num_groups`` is the older
      name for the number.
    - ``sparse_as_dense``: reduces sparse gradients as dense ones; by default only rows that some rank has are sent.
    - ``process_set``: the ranks that reduce gradients; on other ranks the optimizer works alone.

    A parameter without a gradient on this rank contributes zeros. Raises ``ValueError`` for invalid arguments;
    backward() and step() raise :class:`HorovodInternalError` or its cause.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        >>> model(torch.ones(2, 3)).sum().backward()
        >>> optimizer.synchronize()
        >>> norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        >>> with optimizer.skip_synchronize():
        ...     optimizer.step()
    """
    if num_groups != 0:
        warnings.warn("num_groups is deprecated: use groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if compression is NoneCompressor:
        compression = Compression.none
    elif compression is FP16Compressor:
        compression = Compression.fp16
    if isinstance(op, AdasumOp):
        if gradient_predivide_factor != 1.0:
            raise ValueError("gradient_predivide_factor works with op=hvd.Average only")
        if groups or sparse_as_dense:
            raise ValueError("groups and sparse_as_dense do not work with op=hvd.Adasum")
        if size() > 1:
            return distribute_by_adasum(
                optimizer, named_parameters, compression, backward_passes_per_step, process_set
            )
        op = Sum  # over one rank
    return _DistributedOptimizer(
        optimizer,
        named_parameters,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        process_set,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        layer=HorovodDistributed,
    )
