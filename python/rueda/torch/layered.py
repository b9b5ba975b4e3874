"""An optimizer with other methods over its own."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["laid_over"]


def laid_over(layer: type[torch.optim.Optimizer], optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer with the methods of ``layer`` over those of ``optimizer``, of whose class it is an instance, too.

    What the optimizer holds is shared, not copied: a scheduler that holds the old one goes on changing these
    param_groups. A scheduler also replaces the old one's step() by a wrapper, which must not hide the new one's.
    """
    base = optimizer.__class__
    kind: Any = type(base.__name__, (layer, base), {"__module__": base.__module__})
    made = kind.__new__(kind)
    made.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    return made
