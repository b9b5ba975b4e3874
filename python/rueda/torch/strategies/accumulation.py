"""Gradient accumulation: one step for several batches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.torch.shards import local_of
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
        self._add_sums()
        self._taken = 0

    def _add_sums(self, names: Collection[str] = ()) -> None:
        """For all parameters that require gradients, as some may have been unfrozen, and for those of these names."""
        for name, each in self.replica.originals.items():
            if name not in self._sums and (each.requires_grad or name in names):
                self._sums[name] = torch.zeros_like(local_of(each))

    @torch.no_grad()
    def before_step(self) -> bool:
        self._add_sums()
        gradients = self.replica.gradients()
        for name, each in self._sums.items():
            if name in gradients:
                each.add_(gradients[name])
        self._taken += 1
        if self._taken < self.batches:
            return False
        means = self.replica.average(
            {name: each / self.batches for name, each in self._sums.items()}, "gradients"
        )
        self.replica.set_gradients(means)
        for each in self._sums.values():
            each.zero_()
        self._taken = 0
        return True

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
                f"{self._taken} of {self.batches} batches of the next step have been accumulated, and would be lost"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self._sums, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._add_sums(state["sums"])
        load(self._sums, {**self._sums, **state["sums"]})
        self._taken = int(state["taken"])
