"""Tells how often the user has signalled the launcher, which consists of two processes."""

from __future__ import annotations

from typing import Literal

# How a signal comes to the process that runs the job: sent to it, or passed on by its guardian.
Way = Literal["direct", "relayed"]


class Interruptions:
    """Counts signals by the way they come, of which the one that brought more tells the truth.

    `kill PID` reaches the guardian only, which relays it. `pkill` by a pattern and a batch system
    that ends a job signal both processes: the same interruption comes twice then, and nothing says
    how much later the second time is.
    """

    def __init__(self) -> None:
        self._by_way: dict[Way, int] = {"direct": 0, "relayed": 0}

    def is_new(self, *ways: Way) -> bool:
        """Counts a signal that came by `ways`; returns whether it had not come by another yet."""
        before = max(self._by_way.values())
        for way in ways:
            self._by_way[way] += 1
        return max(self._by_way.values()) > before
