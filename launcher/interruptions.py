"""Tells how often the user has signalled the launcher, which consists of several processes."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Literal

# Not for the launcher but for the ranks, as under mpirun: a batch system announces the end of a job so.
RELAYED = (signal.SIGUSR1, signal.SIGUSR2)

# What one process sends twice within so many seconds it means once.
_AT_ONCE = 0.5

# How a signal comes to the process that runs the job: sent to it, or passed on by its guardian.
Way = Literal["direct", "relayed"]


def hold_relayed_signals() -> None:
    """Until there are ranks, and once they are gone, these signals do nothing, where they are not ignored anyway.

    By a handler, since ranks would inherit that they are ignored.
    """

    def do_nothing(number: int, frame: FrameType | None) -> None:
        pass

    for number in relayed_signals():
        signal.signal(number, do_nothing)


def relayed_signals() -> list[signal.Signals]:
    """Those of RELAYED that whoever has started this process has not had ignored."""
    return [number for number in RELAYED if signal.getsignal(number) is not signal.SIG_IGN]


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


class Repetitions:
    """Tells a signal that is sent to a process twice at once from one that is sent again.

    `timeout` signals the process that it has started, and then the group that it has put it into.
    """

    def __init__(self) -> None:
        self._counted: dict[tuple[int, int], float] = {}

    def is_new(self, number: int, sender: int, now: float) -> bool:
        """Whether to count it; `sender`: a process, or 0 for the kernel, as a terminal sends it."""
        before = self._counted.get((number, sender))
        if sender > 0 and before is not None and now - before < _AT_ONCE:
            return False
        self._counted[number, sender] = now
        return True
