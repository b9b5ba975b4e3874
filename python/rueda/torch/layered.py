"""An optimizer with other methods over its own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["laid_over", "load_in_place", "note_step"]


def laid_over(layer: type[torch.optim.Optimizer], optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer with the methods of ``layer`` over those of ``optimizer``, of whose class it is an instance, too.

    What the optimizer holds is shared, not copied: a scheduler that holds the old one goes on changing these
    param_groups. A scheduler also replaces the old one's step() by a wrapper, which must not hide the new one's; the
    layer's step() calls note_step().
    """
    base = optimizer.__class__
    own = {"__module__": base.__module__, "_rueda_below": weakref.ref(optimizer)}
    kind: Any = type(base.__name__, (layer, base), own)
    made = kind.__new__(kind)
    made.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    return made


def note_step(optimizer: Any) -> None:
    """Tells the optimizer below a step, as a scheduler's wrapper does: torch warns where there was none."""
    below = optimizer._rueda_below()
    if below is not None:
        below._opt_called = True


def load_in_place(optimizer: torch.optim.Optimizer, load: Callable[[], None]) -> None:
    """Calls ``load``, which gives the optimizer other param_groups, and puts these into the list that it had.

    Schedulers that were made before the layer was laid over hold the optimizer below, with the same list.
    """
    groups = optimizer.param_groups
    load()
    groups[:] = optimizer.param_groups
    optimizer.param_groups = groups
