"""What ranks agree on while they trace a step, and once more with those who trace it later, in another world."""

from __future__ import annotations

from collections.abc import Callable

from rueda.lifecycle import world_number

__all__ = ["TracedStep"]

# Those that have been traced since any of them has run: they belong to one compiled function.
_fresh: list[TracedStep] = []


class TracedStep:
    """Which gradients a step that is compiled is to have, by ``agree``, in which every rank takes part while it traces.

    A rank that comes into a later world has to trace the step, which others have done long ago. So they agree again
    when they run it there for the first time: on all that was traced with it, in the same order, as a function is
    traced as a whole before any of it runs.
    """

    def __init__(self, agree: Callable[[], list[bool]]) -> None:
        self.possible = agree()
        self._agree = agree
        self._world = world_number()
        self._together = _fresh
        self._together.append(
            self
        )  # another thread, which runs a step, may have taken another list meanwhile

    def begin(self) -> None:
        """The step is about to run."""
        global _fresh
        if _fresh:
            _fresh = []
        self.follow_world()

    def follow_world(self) -> None:
        """Has the ranks of another world agree; what is traced next still belongs together with what was before."""
        for each in self._together:
            if each._world != world_number():
                each._agree()
                each._world = world_number()
