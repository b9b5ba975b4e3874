"""What lets the models of ranks differ, and what makes them alike when a training begins."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping

import torch

from rueda.errors import InvalidArgumentError
from rueda.objects import allgather_object
from rueda.torch.fingerprints import numbers_of
from rueda.torch.model_tensors import caches_in_common, caches_of, tensors_of
from rueda.torch.shards import local_of
from rueda.torch.state import broadcast_parameters
from rueda.torch.strategies.replica import Replica, replicas_of
from rueda.torch.strategies.strategy import Strategy

__all__ = ["begin_alike", "diverging", "strategy_in_use"]


def strategy_in_use(replica: Replica) -> Strategy | None:
    """Its optimizer's strategy; ``None`` if it could not start, or if nobody uses the optimizer any more."""
    strategy: Strategy | None = getattr(replica._optimizer(), "_rueda_strategy", None)
    return strategy


def diverging(parameters: Iterable[torch.Tensor]) -> list[Replica]:
    """The replicas that have any of these parameters and whose strategies let ranks differ."""
    return [
        each
        for each in replicas_of(parameters)
        if (strategy := strategy_in_use(each)) is not None and not strategy.ranks_stay_equal
    ]


def begin_alike(model: torch.nn.Module, replica: Replica) -> None:
    """Gives all ranks the model of the first. Collective.

    Parameters that another optimizer trains, by a strategy that lets ranks differ, are left alone. Raises
    :class:`rueda.InvalidArgumentError` on every rank if these do differ.
    """
    process_set, prefix = replica.process_set, replica.prefix
    tensors = tensors_of(model)
    mine = _trained_by_others(tensors, replica)
    told: list[dict[str, str]] = allgather_object(mine, f"{prefix}/others", process_set)
    by_others = {name: strategy for its in told for name, strategy in its.items()}
    if by_others:
        _require_same_bits({name: tensors[name] for name in by_others}, by_others, replica)
    rest = {name: each for name, each in tensors.items() if name not in by_others}
    rest |= caches_in_common(caches_of(model), f"{prefix}/caches", process_set)
    broadcast_parameters(rest, process_set.ranks[0], process_set)


def _trained_by_others(tensors: Mapping[str, torch.Tensor], replica: Replica) -> dict[str, str]:
    """The parameters that other optimizers train and may let differ, with their strategies."""
    rest = {name: each for name, each in tensors.items() if each not in replica.known}
    if diverging(rest.values()):
        gc.collect()  # a scheduler makes an optimizer part of a cycle, in which it outlives its use
    found: dict[str, str] = {}
    for other in diverging(rest.values()):
        strategy = strategy_in_use(other)
        assert strategy is not None
        found |= {name: strategy.describe() for name, each in rest.items() if each in other.known}
    return found


def _require_same_bits(
    tensors: Mapping[str, torch.Tensor], strategies: Mapping[str, str], replica: Replica
) -> None:
    numbers = numbers_of([local_of(each) for each in tensors.values()])
    told: list[list[int]] = allgather_object(
        numbers, f"{replica.prefix}/others' parameters", replica.process_set
    )
    differing = [
        name
        for name, its in zip(tensors, zip(*told, strict=True), strict=True)
        if len(set(its)) > 1
    ]
    if differing:
        first = differing[0]
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise InvalidArgumentError(
            f"'{first}'{more} differ between ranks, since another wrapped optimizer has trained them by "
            f"{strategies[first]}: call its consolidate() on every rank before wrap(), or wrap() only the part of the "
            f"model that the new optimizer trains",
            tensor=first,
        )
