"""The part of an optimizer's state that differs between ranks, so that each saves and gets back its own.

That is what compression has lost of gradients, and the sums of gradients in which a step's last batch is yet to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rueda.torch.compression_state import COMPRESSION_STATE, shared_by_ranks
from rueda.torch.left_out import STRATEGY_STATE
from rueda.torch.strategies.accumulation import MeanOfSums, apart

__all__ = ["completed", "divided", "of_other_ranks"]

_LOST = ("residuals", "velocities")
_SUMS = "accumulated"


def divided(state: Any) -> tuple[Any, dict[str, Any]]:
    """A part's state without what is this rank's own, and that, which is empty for most parts."""
    own: dict[str, Any] = {}
    if not isinstance(state, Mapping):
        return state, own
    lost = state.get(COMPRESSION_STATE)
    if lost is not None:
        state = {**state, COMPRESSION_STATE: shared_by_ranks(lost)}
        own.update((kind, lost[kind]) for kind in _LOST)
    strategy = state.get(STRATEGY_STATE)
    if strategy is not None:
        kept, sums = apart(strategy["kept"])
        if sums:
            state = {**state, STRATEGY_STATE: {**strategy, "kept": kept}}
            own[_SUMS] = sums
    return state, own


def completed(state: Any, own: Mapping[str, Any]) -> Any:
    """The inverse of :func:`divided`."""
    if _LOST[0] in own:
        lost = {kind: own[kind] for kind in _LOST}
        state = {**state, COMPRESSION_STATE: {**state[COMPRESSION_STATE], **lost}}
    if _SUMS in own:
        strategy = state[STRATEGY_STATE]
        kept = {**strategy["kept"], **own[_SUMS]}
        state = {**state, STRATEGY_STATE: {**strategy, "kept": kept}}
    return state


def of_other_ranks(every: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What a rank of a world of another size gets: the mean of the sums, and nothing of what compression has lost."""
    mean = None
    for own in every:
        if _SUMS in own:
            mean = mean or MeanOfSums()
            mean.add(own[_SUMS])
    return {} if mean is None else {_SUMS: mean.state()}
