"""Keeps the names of optimizers the same on ranks that have started a training function differently often."""

from __future__ import annotations

import sys

from rueda.lifecycle import is_initialized, size
from rueda.objects import allgather_object

__all__ = ["align_names"]


def align_names() -> None:
    """Called before the function starts; collective over the world.

    An optimizer that the function makes is named by its number. A newcomer starts the function for the first time, and
    has made fewer of them than the others.
    """
    if not is_initialized() or size() == 1:
        return
    gradients = sys.modules.get("rueda.torch.gradients")
    mine = {} if gradients is None else gradients.prefix_counts()
    every: list[dict[str, int]] = allgather_object(mine, "elastic.names")
    if gradients is not None:
        for counts in every:
            gradients.raise_prefix_counts(counts)
