"""Arithmetic on tensors by their parameters' names."""

from __future__ import annotations

from collections.abc import Mapping

import torch

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
    """assign() of saved values; raises ValueError if their names or shapes differ."""
    kept = {name: each.shape for name, each in targets.items()}
    if {name: each.shape for name, each in values.items()} != kept:
        raise ValueError(f"the state belongs to other parameters than {', '.join(kept)}")
    assign(targets, values)
