"""Gradient accumulation: one step for several batches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.torch.shards import local_of
from rueda.torch.sparse import no_rows
from rueda.torch.strategies.named import load
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.strategy import Strategy, at_least

__all__ = ["GradientAccumulation"]


@dataclass
class GradientAccumulation(Strategy):
    """``"accumulate:4"``: one step with the mean gradient of ``batches`` batches on each of the P ranks.

    x_{t+1} = x_t - η/(P·k) Σ_i Σ_j ∇f_ij(x_t), k being ``batches``: synchronous training with a batch k times as
    large, at 1/k of its bytes. Ott et al., "Scaling neural machine translation", WMT 2018, on training with large
    batches. The loop keeps its zero_grad(), backward() and step() for every batch: all but each k-th step() only add
    the gradients to a separate buffer as large as the parameters. All ranks stay bitwise equal.

    Sums of sparse gradients stay sparse. A parameter whose gradients are sparse though no ``Embedding(sparse=True)``
    has it must have a gradient on every rank before the first step.

    switch() and close() raise :class:`rueda.InvalidArgumentError` while batches wait for the others of their step, or
    drop them with ``drop_incomplete``; consolidate() leaves them for that step.

    Example::

        >>> from rueda.torch.strategies import GradientAccumulation
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = rueda.torch.wrap(model, optimizer, strategy="accumulate:4")
    """

    batches: int = 4

    name: ClassVar[str] = "accumulate"
    takes_closure: ClassVar[bool] = False  # not every batch has a step
    ranks_stay_equal: ClassVar[bool] = True
    reduces_gradients: ClassVar[bool] = True

    def validate(self, replica: Replica) -> None:
        at_least(self, 1, "batches")

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._sums: dict[str, torch.Tensor] = {}
        # Without a gradient so far, so that the layout of their sums is a guess.
        self._untouched: set[str] = set()
        self._add_sums()
        self._taken = 0

    def _add_sums(self, names: Collection[str] = ()) -> None:
        """For all parameters that require gradients, as some may have been unfrozen, and for those of these names."""
        for name, each in self.replica.originals.items():
            if name not in self._sums and (each.requires_grad or name in names):
                local, is_sparse = local_of(each), name in self.replica.sparse
                self._sums[name] = no_rows(local, 1) if is_sparse else torch.zeros_like(local)
                self._untouched.add(name)

    @torch.no_grad()
    def before_step(self) -> bool:
        self._add_sums()
        gradients = self.replica.gradients()
        for name, each in self._sums.items():
            if name in gradients:
                self._sums[name] = self._added(name, each, gradients[name])
        self._taken += 1
        if self._taken < self.batches:
            return False
        means = self.replica.average(
            {name: each / self.batches for name, each in self._sums.items()}, "gradients"
        )
        self.replica.set_gradients(means)
        self.drop_incomplete()
        return True

    def _added(self, name: str, total: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The sum with a gradient: sparse as long as all gradients are."""
        is_sparse = gradient.layout == torch.sparse_coo
        if name in self._untouched:
            self._untouched.remove(name)
            if is_sparse and total.layout != torch.sparse_coo:
                total = no_rows(total, gradient.sparse_dim())
        if total.layout != torch.sparse_coo:
            return total.add_(gradient)
        if is_sparse:
            return total.add_(gradient).coalesce()
        return total.to_dense().add_(gradient)

    @torch.no_grad()
    def drop_incomplete(self) -> None:
        for name, each in self._sums.items():
            if each.layout == torch.sparse_coo:
                self._sums[name] = no_rows(each, each.sparse_dim())
            else:
                each.zero_()
        self._taken = 0

    def before_scaler(self) -> None:
        if self.batches > 1:
            raise UnsupportedError(
                f"{self.describe()} takes no GradScaler: for each batch of a step, every rank would decide by itself "
                f"whether it counts, and with which scale. DistributedOptimizer(backward_passes_per_step="
                f"{self.batches}) takes one: it decides once for all batches of a step"
            )

    def consolidate(self) -> None:
        """All ranks have the same parameters already."""

    def before_switch(self) -> None:
        if self._taken:
            raise InvalidArgumentError(
                f"{self._taken} of {self.batches} batches of the next step have been accumulated, and would be lost: "
                f"call step() with {self.batches - self._taken} more first, or drop them with drop_incomplete=True"
            )

    def state_dict(self) -> dict[str, Any]:
        sparse = {
            name: each.sparse_dim()
            for name, each in self._sums.items()
            if each.layout == torch.sparse_coo
        }
        state = {
            "sums": {n: each.to_dense() for n, each in self._sums.items()},
            "taken": self._taken,
        }
        return {**state, "sparse": sparse} if sparse else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._add_sums(state["sums"])
        sums = {name: each.to_dense() for name, each in self._sums.items()}
        load(sums, {**sums, **state["sums"]})
        dimensions = {
            name: each.sparse_dim()
            for name, each in self._sums.items()
            if each.layout == torch.sparse_coo
        } | state.get("sparse", {})
        for name, each in sums.items():
            is_sparse = name in dimensions
            self._sums[name] = each.to_sparse(dimensions[name]) if is_sparse else each
            if each.any():
                self._untouched.discard(name)
        self._taken = int(state["taken"])
