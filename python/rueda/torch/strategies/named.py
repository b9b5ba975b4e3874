"""Arithmetic on tensors by their parameters' names."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rueda.errors import InvalidArgumentError
from rueda.torch.strategies.names import listed

__all__ = ["Named", "assign", "copied", "difference", "load"]

Named = Mapping[str, torch.Tensor]


@torch.no_grad()
def copied(tensors: Named) -> dict[str, torch.Tensor]:
    """Contiguous copies, detached from the autograd graph."""
    return {
        name: each.detach().clone(memory_format=torch.contiguous_format)
        for name, each in tensors.items()
    }


@torch.no_grad()
def difference(left: Named, right: Named) -> dict[str, torch.Tensor]:
    """``left`` minus ``right``, for the names in ``right``."""
    return {name: left[name].detach() - each.detach() for name, each in right.items()}


@torch.no_grad()
def assign(targets: Named, values: Named) -> None:
    """Copies the values into the targets of the same names."""
    for name, each in values.items():
        targets[name].copy_(each)


def load(targets: Named, values: Named) -> None:
    """assign() of saved values.

    Raises :class:`rueda.InvalidArgumentError`, which says which differ, if their names or shapes do.
    """
    common = [name for name in targets if name in values]
    found = {
        "only the state has": [name for name in values if name not in targets],
        "the state lacks": [name for name in targets if name not in values],
        "another shape have": [n for n in common if targets[n].shape != values[n].shape],
    }
    differing = [f"{what} {listed(names)}" for what, names in found.items() if names]
    if differing:
        raise InvalidArgumentError(f"the state belongs to other parameters: {'; '.join(differing)}")
    assign(targets, values)
