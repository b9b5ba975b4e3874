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
        _fresh.append(self)

    def begin(self) -> None:
        """The step is about to run, or to be traced again."""
        global _fresh
        if _fresh:
            _fresh = []
        for each in self._together:
            each._follow_world()

    def _follow_world(self) -> None:
        if self._world != world_number():
            self._agree()
            self._world = world_number()
