"""Recognizes states of optimizers from which what Rueda keeps there has been left out.

Rueda adds keys of its own to an optimizer's ``state_dict()``, besides torch's ``state`` and ``param_groups``. The
functions of ``torch.distributed.checkpoint.state_dict`` take only these two, so that the rest would be lost silently.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import torch

from rueda.errors import InvalidArgumentError
from rueda.torch.compression_state import COMPRESSION_STATE, CompressionState

__all__ = [
    "LEAF_STATE",
    "STRATEGY_STATE",
    "compression_matters",
    "forget_marks",
    "marked",
    "refuse_strategy",
    "require_whole",
    "strategy_matters",
    "unmarked",
]

# The keys in an optimizer's state_dict() of a strategy, and of the leaves of reproducible=True.
STRATEGY_STATE = "rueda_strategy"
LEAF_STATE = "rueda_leaves"

# Before the keys that a state has besides: the options, in each of its param_groups, that tell of them. torch carries
# unknown options along. Their values are empty dictionaries, which its functions and checkpoints drop where they take
# groups apart: any other value would have to be in both states, and be missed in those of plain optimizers.
_MARK = "needs_"

_WHAT = {
    STRATEGY_STATE: "what its strategy keeps",
    COMPRESSION_STATE: "what compression has lost of gradients",
    LEAF_STATE: "the number of the step, from which the leaves' seeds follow",
}
_MARKS = {_MARK + key: key for key in _WHAT}


def marked(state: dict[str, Any], needed: Collection[str]) -> dict[str, Any]:
    """A state whose groups name the keys that it must have; the same without any."""
    if not needed:
        return state
    groups = [{**group, **{_MARK + key: {} for key in needed}} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def unmarked(state: dict[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`marked`."""
    if not _marks_of(state):
        return state
    groups = [
        {key: each for key, each in group.items() if key not in _MARKS}
        for group in state["param_groups"]
    ]
    return {**state, "param_groups": groups}


def forget_marks(optimizer: torch.optim.Optimizer) -> None:
    """Removes the marks that an optimizer without Rueda's layers has got from a state: it lost the rest then."""
    for group in optimizer.param_groups:
        for mark in _MARKS:
            group.pop(mark, None)


def require_whole(state: Mapping[str, Any], *used: str) -> None:
    """Raises InvalidArgumentError if one of the keys ``used``, or a strategy's, was left out of a state.

    If a state is from torch's functions, but does not tell whether it ever had them, warns that they start anew: it may
    be that of an optimizer without them. Torch drops the mark where it takes groups apart: in states that are full or
    flattened, and in its checkpoints.
    """
    for key in sorted(_left_out_of(state)):
        if key in used or key == STRATEGY_STATE:
            raise InvalidArgumentError(
                f"the state lacks '{key}', {_WHAT[key]}: torch's get_state_dict() and get_optimizer_state_dict() leave "
                f"it out. Let every rank save and load its own optimizer.state_dict(), or use rueda.checkpoint. To "
                f"start anew without it, remove '{_MARK}{key}' from the state's param_groups"
            )
    absent = [key for key in used if key not in state]
    if absent and _is_of_torch(state):
        what = " and ".join(_WHAT[key] for key in absent)
        warnings.warn(
            f"the state is from torch's get_state_dict() or get_optimizer_state_dict(), which leave out {what}: the "
            "optimizer starts anew without it. To resume its training, let every rank save and load its own "
            "optimizer.state_dict(), or use rueda.checkpoint",
            stacklevel=3,
        )


def refuse_strategy(state: Mapping[str, Any]) -> None:
    """Raises InvalidArgumentError for the state of a strategy that has something to lose without it."""
    kept = state.get(STRATEGY_STATE)
    if kept is None:
        require_whole(state)
    elif strategy_matters(kept):
        raise InvalidArgumentError(
            f"the state belongs to {kept['strategy']}, but this is a DistributedOptimizer, which would lose what the "
            f'strategy keeps: wrap() with the state\'s strategy, load it, then switch("sync"), whose state fits here'
        )


def strategy_matters(kept: Mapping[str, Any]) -> bool:
    """Whether a training that goes on without this state of a strategy differs from one with it.

    It does not before the first batch, nor if all ranks have the same and nothing is pending.
    """
    if not kept["batches"]:
        return False
    own = kept["kept"]
    adds_up = "taken" in own and own.keys() <= {"sums", "sparse", "taken"}  # as "accumulate" does
    # Older states do not tell.
    if not kept.get("ranks_stay_equal", adds_up or not own):
        return True
    return bool(own["taken"] if adds_up else own)


def compression_matters(kept: CompressionState | None) -> bool:
    """The same of compression's state."""
    if kept is None or not kept["steps"]:
        return False
    return any((kept["residuals"], kept["velocities"], kept["momenta"]))


def _is_of_torch(state: Mapping[str, Any]) -> bool:
    """Whether torch's get_state_dict() or a similar function made a state: it gives parameters their names."""
    return any(isinstance(each, str) for g in state.get("param_groups", ()) for each in g["params"])


def _left_out_of(state: Mapping[str, Any]) -> set[str]:
    """The keys that a state must have, but has not."""
    return {key for mark, key in _MARKS.items() if mark in _marks_of(state) and key not in state}


def _marks_of(state: Mapping[str, Any]) -> set[str]:
    return {
        mark for group in state.get("param_groups", ()) for mark in _MARKS.keys() & group.keys()
    }
