"""Detects that backward() has produced new gradients."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from rueda.torch.compiling import never_traced

__all__ = ["NewGradients"]


class NewGradients:
    """Sets ``have_come`` when a gradient of one of the parameters is created or accumulated."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.have_come = False
        # A model outlives its optimizers, so its hooks must not keep them alive.
        reference = weakref.ref(self)

        @never_traced
        def note(_: torch.Tensor) -> None:
            watching = reference()
            if watching is not None:
                watching.have_come = True

        self._hooks = [
            each.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for each in parameters
            if each.requires_grad
        ]

    def close(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
