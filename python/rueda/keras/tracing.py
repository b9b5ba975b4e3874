"""Agreement between ranks while they trace a step, repeated in a later world for ranks that trace it only then."""

from __future__ import annotations

from collections.abc import Callable

from rueda.lifecycle import world_number

__all__ = ["TracedStep"]

# Steps traced since a step last ran: they belong to one compiled function.
_fresh: list[TracedStep] = []


class TracedStep:
    """The gradients of a compiled step, found by ``agree``, a collective that every rank calls while it traces.

    A rank that joins a later world must trace the step, which the others traced long ago. So the others agree again
    when they first run or retrace it in that world: on every step traced with it, in the same order, since a function
    is traced as a whole before any of it runs.
    """

    def __init__(self, agree: Callable[[], list[bool]]) -> None:
        self.possible = agree()
        self._agree = agree
        self._world = world_number()
        self._together = _fresh
        self._together.append(
            self
        )  # another thread that runs a step may have replaced _fresh meanwhile

    def begin(self) -> None:
        """Call this when the step is about to run."""
        global _fresh
        if _fresh:
            _fresh = []
        self.follow_world()

    def follow_world(self) -> None:
        """Agrees again if the world has changed; steps traced next still belong to the same group."""
        for each in self._together:
            if each._world != world_number():
                each._agree()
                each._world = world_number()
