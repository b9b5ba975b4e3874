"""Whether backward() has gone on."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from rueda.torch.compiling import never_traced

__all__ = ["NewGradients"]


class NewGradients:
    """Notes that a gradient of one of the parameters was made or added to."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.have_come = False
        # A model outlives its optimizers, so its hooks must not keep them.
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
        """Notes nothing any more."""
        for hook in self._hooks:
            hook.remove()
