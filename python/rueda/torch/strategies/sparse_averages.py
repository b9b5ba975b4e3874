"""Averages of gradients of which some are sparse: each parameter's are sparse on all ranks or dense on all."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import torch

from rueda.errors import MismatchError
from rueda.torch.sparse import no_rows
from rueda.torch.strategies.replica import Replica

__all__ = ["SparseAverages"]

_WHAT = "gradients"
# The first tensor of an average without sparse gradients. Where some ranks begin such an average and others ask about
# sparse ones, all are told at once that their operations differ.
_FIRST = f"{_WHAT}.0"


class SparseAverages:
    """Averages gradients, whichever of them are sparse on which rank.

    Whether a gradient is sparse can change from step to step and differ between ranks, as where only some use a table
    as their last layer, too. So ranks tell each other before each average, once any of them has had a sparse one.

    Example::

        >>> from rueda.torch.strategies.replica import Replica
        >>> from rueda.torch.strategies.sparse_averages import SparseAverages
        >>> table = torch.nn.Embedding(3, 1, sparse=True)
        >>> optimizer = torch.optim.SGD(table.parameters())
        >>> replica = Replica(optimizer, dict(table.named_parameters()), rueda.torch.global_process_set, "example")
        >>> averages = SparseAverages(replica)
        >>> averages.average({"weight": torch.eye(3, 1).to_sparse(1)}, ["weight"])["weight"].layout
        torch.sparse_coo
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._are_known = False  # whether ranks have told each other of sparse gradients

    def average(
        self, gradients: Mapping[str, torch.Tensor], touched: Collection[str]
    ) -> dict[str, torch.Tensor]:
        """The mean over the ranks: sparse where it is sparse on some rank and dense on none. Collective.

        ``touched``: the parameters that have had a gradient on this rank; the zeros of others count as neither. Raises
        as :func:`rueda.torch.allreduce` and :func:`rueda.torch.sparse_allreduce`.
        """
        asks = self._are_known or any(each.layout != torch.strided for each in gradients.values())
        try:
            return self._averaged(gradients, touched, asks)
        except MismatchError as error:  # on all ranks, without an effect
            if not self._is_about_asking(error):
                raise
        return self._averaged(gradients, touched, asks=True)

    def _is_about_asking(self, error: MismatchError) -> bool:
        return (
            error.tensor == f"{self._replica.prefix}/{_FIRST}"
            and error.field == "operation"
            and {*error.values} == {"allgather", "allreduce"}
        )

    def _averaged(
        self, gradients: Mapping[str, torch.Tensor], touched: Collection[str], asks: bool
    ) -> dict[str, torch.Tensor]:
        own = dict(gradients)
        if asks:
            sparse = self._sparse_on_all(gradients, touched)
            own = {name: _as_on_all(each, sparse.get(name)) for name, each in gradients.items()}
        return self._replica.average(own, _WHAT)

    def _sparse_on_all(
        self, gradients: Mapping[str, torch.Tensor], touched: Collection[str]
    ) -> dict[str, int]:
        """Those that are sparse on some rank and dense on none, with their number of sparse dimensions."""
        mine = {
            name: each.sparse_dim() if each.layout == torch.sparse_coo else 0
            for name, each in gradients.items()
            if each.layout == torch.sparse_coo or name not in touched
        }
        content = bytearray(json.dumps(mine).encode() + b"\n")
        gathered = self._replica.gather(torch.frombuffer(content, dtype=torch.uint8), _FIRST)
        self._are_known = True
        told = [json.loads(each) for each in gathered.numpy().tobytes().splitlines()]
        dimensions = {
            name: max(its.get(name, 0) for its in told)
            for name in gradients
            if all(name in its for its in told)
        }
        return {name: count for name, count in dimensions.items() if count}


def _as_on_all(gradient: torch.Tensor, sparse_dimensions: int | None) -> torch.Tensor:
    """``sparse_dimensions``: ``None`` where it is to be dense."""
    is_sparse = gradient.layout == torch.sparse_coo
    if sparse_dimensions is None:
        return gradient.to_dense() if is_sparse else gradient
    return gradient if is_sparse else no_rows(gradient, sparse_dimensions)
