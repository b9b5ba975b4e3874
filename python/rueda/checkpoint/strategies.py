"""Refuses what strategies let differ between ranks, so that no checkpoint mixes the states of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rueda.errors import UnsupportedError
from rueda.torch.fingerprints import number_of_words, numbers_of
from rueda.torch.strategies.alike import diverging, strategy_in_use
from rueda.torch.strategies.replica import Replica

__all__ = ["fingerprint", "require_alike", "require_same_parameters"]

_BITS = (1 << 63) - 1


def require_alike(name: str, part: Any) -> None:
    """Raises :class:`rueda.UnsupportedError` for an optimizer whose state differs between ranks."""
    if not isinstance(part, torch.optim.Optimizer):
        return
    for replica in diverging(each for group in part.param_groups for each in group["params"]):
        if replica.optimizer.state is part.state:  # wrapped, or below the wrapped one
            raise UnsupportedError(
                f"{name}: with the strategy {_told(replica)} each rank's optimizer has its own state: "
                'switch("sync") before saving, or let every rank torch.save() its own state_dict()'
            )


def fingerprint(parts: Mapping[str, Any]) -> int:
    """Identifies the values, now, of the modules' parameters that a strategy may let differ; 0 if there are none."""
    tensors: list[torch.Tensor] = []
    for _, module in sorted(_modules(parts)):
        known = {each for replica in diverging(module.parameters()) for each in replica.known}
        tensors += [each for each in module.parameters() if each in known]
    return number_of_words(numbers_of(tensors)) & _BITS if tensors else 0


def require_same_parameters(parts: Mapping[str, Any], fingerprints: Sequence[int]) -> None:
    """Raises :class:`rueda.UnsupportedError`, on every rank, if these, one of each rank, differ."""
    if len(set(fingerprints)) == 1:
        return
    told = [
        f"{name}: with the strategy {_told(replica)} each rank's parameters are its own now"
        for name, module in _modules(parts)
        for replica in diverging(module.parameters())
    ]
    raise UnsupportedError(
        f"{'; '.join(told) or 'parameters differ between ranks'}: call the optimizer's consolidate() before saving"
    )


def _modules(parts: Mapping[str, Any]) -> list[tuple[str, torch.nn.Module]]:
    return [(name, each) for name, each in parts.items() if isinstance(each, torch.nn.Module)]


def _told(replica: Replica) -> str:
    strategy = strategy_in_use(replica)
    assert strategy is not None
    return strategy.describe()
