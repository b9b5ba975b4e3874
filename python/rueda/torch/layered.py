"""Overrides methods of an existing optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch

from rueda.errors import InvalidArgumentError
from rueda.torch.left_out import forget_marks

__all__ = ["laid_over", "load_in_place", "note_step", "require_known"]


def laid_over(layer: type[torch.optim.Optimizer], optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer with the methods of ``layer`` on top of those of ``optimizer``, and also an instance of its class.

    The optimizer's contents are shared, not copied: a scheduler that holds the old one keeps changing these
    param_groups. A scheduler also replaces the old one's step() by a wrapper, which must not hide the new one's; the
    layer's step() calls note_step().
    """
    forget_marks(optimizer)
    base = optimizer.__class__
    own = {"__module__": base.__module__, "_rueda_below": weakref.ref(optimizer)}
    kind: Any = type(base.__name__, (layer, base), own)
    made = kind.__new__(kind)
    made.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    return made


def note_step(optimizer: Any) -> None:
    """Reports a step to the optimizer below, as a scheduler's wrapper does: otherwise torch warns."""
    below = optimizer._rueda_below()
    if below is not None:
        below._opt_called = True


def load_in_place(optimizer: torch.optim.Optimizer, load: Callable[[], None]) -> None:
    """Calls ``load``, which gives the optimizer new param_groups, and moves them into the list that it had.

    Schedulers created before the layer was added hold the optimizer below, which has the same list.
    """
    groups = optimizer.param_groups
    load()
    groups[:] = optimizer.param_groups
    optimizer.param_groups = groups


def require_known(
    groups: Iterable[dict[str, Any]], known: Container[torch.Tensor], remedy: str
) -> None:
    """Raises InvalidArgumentError if the param_groups have a parameter that the layer does not know.

    Someone has changed them: each rank would step with its own gradient of it.
    """
    for number, group in enumerate(groups):
        for position, parameter in enumerate(group["params"]):
            if parameter not in known and parameter.requires_grad:
                raise InvalidArgumentError(
                    f"parameter {position} of group {number} has come into param_groups without the distributed "
                    f"optimizer's knowledge, so its gradient is not reduced: {remedy}"
                )
