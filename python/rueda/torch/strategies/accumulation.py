"""Gradient accumulation: one step for several batches."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.torch.shards import local_of
from rueda.torch.sparse import no_rows
from rueda.torch.strategies.replica import Replica
from rueda.torch.strategies.sparse_averages import SparseAverages
from rueda.torch.strategies.strategy import Strategy, at_least

__all__ = ["GradientAccumulation", "MeanOfSums", "apart"]


@dataclass
class GradientAccumulation(Strategy):
    """``"accumulate:4"``: one step with the mean gradient of ``batches`` batches on each of the P ranks.

    x_{t+1} = x_t - η/(P·k) Σ_i Σ_j ∇f_ij(x_t), k being ``batches``: synchronous training with a batch k times as
    large, at 1/k of its bytes. Ott et al., "Scaling neural machine translation", WMT 2018, on training with large
    batches. The loop keeps its zero_grad(), backward() and step() for every batch: all but each k-th step() only add
    the gradients to a separate buffer as large as the parameters. All ranks stay bitwise equal.

    Sums of sparse gradients stay sparse, and so does their mean. Where any rank has had a dense one of the same
    parameter, the mean is dense on all ranks.

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
        self._averages = SparseAverages(replica)
        self._add_sums()
        self._taken = 0

    def _add_sums(self, names: Collection[str] = ()) -> None:
        """For all parameters that require gradients, as some may have been unfrozen, and for those of these names.

        Gives all the dtype of their gradients, which may have changed, as by model.double().
        """
        for name, each in self.replica.originals.items():
            if name not in self._sums and (each.requires_grad or name in names):
                local, is_sparse = local_of(each), name in self.replica.sparse
                self._sums[name] = no_rows(local, 1) if is_sparse else torch.zeros_like(local)
                self._untouched.add(name)
            if name in self._sums:
                # Newer versions of torch let gradients have another dtype than their parameter.
                dtype = getattr(each, "grad_dtype", None) or each.dtype
                self._sums[name] = self._sums[name].to(dtype)

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
        own = {name: each / self.batches for name, each in self._sums.items()}
        means = self._averages.average(own, own.keys() - self._untouched)
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
        sums: dict[str, torch.Tensor] = {}
        sparse: dict[str, Any] = {}
        for name, each in self._sums.items():
            if each.layout == torch.sparse_coo:
                sparse[name] = _packed(each)
            else:
                sums[name] = each
        return {"sums": sums, "taken": self._taken, **({"sparse": sparse} if sparse else {})}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        found = _sums_in(state)
        self._add_sums(found)
        for name, each in found.items():
            mine = self._sums.get(name)
            if mine is None or mine.shape != each.shape:
                raise ValueError(
                    f"the state belongs to other parameters than {', '.join(self._sums)}"
                )
            self._sums[name] = each.detach().to(mine.device, mine.dtype, copy=True)
            if each._nnz() if each.layout == torch.sparse_coo else each.any():
                self._untouched.discard(name)
        self._taken = int(state["taken"])


class MeanOfSums:
    """The mean of what ranks have accumulated, with which any number of ranks goes on to the same step.

    Example::

        >>> from rueda.torch.strategies.accumulation import MeanOfSums
        >>> mean = MeanOfSums()
        >>> for number in (1.0, 3.0):
        ...     mean.add({"sums": {"weight": torch.tensor([number])}})
        >>> mean.state()
        {'sums': {'weight': tensor([2.])}, 'sparse': {}}
    """

    def __init__(self) -> None:
        self._totals: dict[str, torch.Tensor] = {}
        self._ranks = 0

    def add(self, own: dict[str, Any]) -> None:
        """Takes a rank's sums, as :func:`apart` has returned them."""
        self._ranks += 1
        for name, each in _sums_in(own).items():
            total = self._totals.get(name)
            if total is None:
                self._totals[name] = each.clone()
            elif total.layout == each.layout == torch.sparse_coo:
                self._totals[name] = (total + each).coalesce()
            else:
                self._totals[name] = total.to_dense() + each.to_dense()

    def state(self) -> dict[str, Any]:
        """The mean, like a rank's sums."""
        sums: dict[str, Any] = {}
        sparse: dict[str, Any] = {}
        for name, each in self._totals.items():
            mean = each / self._ranks
            if mean.layout == torch.sparse_coo:
                sparse[name] = _packed(mean)
            else:
                sums[name] = mean
        return {"sums": sums, "sparse": sparse}


def apart(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A strategy's state, divided into what all ranks share and this rank's sums, if it has any.

    Before the first batch of a step all are zero: dense ones are left out.
    """
    if not {"sums", "taken"} <= state.keys():
        return state, {}
    shared = {key: each for key, each in state.items() if key not in ("sums", "sparse")}
    sums = state["sums"] if state["taken"] else {}
    return shared, {"sums": sums, "sparse": state.get("sparse", {})}


def _packed(total: torch.Tensor) -> dict[str, Any]:
    """A sparse tensor, as a state keeps it."""
    total = total.coalesce()
    return {
        "indices": total.indices(),
        "values": total.values(),
        "shape": list(total.shape),
    }


def _sums_in(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The sums of a state by their parameters' names; in older ones all are dense, with the sparse dimensions."""
    sums: dict[str, torch.Tensor] = dict(state["sums"])
    for name, each in state.get("sparse", {}).items():
        if isinstance(each, int):
            sums[name] = sums[name].to_sparse(each)
        else:
            values = each["values"]
            sums[name] = torch.sparse_coo_tensor(
                each["indices"], values, each["shape"], device=values.device, check_invariants=True
            ).coalesce()
    return sums
