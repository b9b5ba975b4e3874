"""Counts how often the user has signalled the launcher, which consists of several processes."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Literal

# Meant for the ranks, not for the launcher, as under mpirun: batch systems use them to announce a job's end.
RELAYED = (signal.SIGUSR1, signal.SIGUSR2)

# Two signals from one process within this many seconds count as one.
_AT_ONCE = 0.5

# How a signal reached the process that runs the job: sent to it, or relayed by its guardian.
Way = Literal["direct", "relayed"]


def hold_relayed_signals() -> None:
    """Makes these signals do nothing, unless they are ignored anyway. For the time before and after the ranks.

    Uses a handler, because ranks would inherit an ignored signal.
    """

    def do_nothing(number: int, frame: FrameType | None) -> None:
        pass

    for number in relayed_signals():
        signal.signal(number, do_nothing)


def relayed_signals() -> list[signal.Signals]:
    """The signals of RELAYED that were not ignored when this process started."""
    return [number for number in RELAYED if signal.getsignal(number) is not signal.SIG_IGN]


class Interruptions:
    """Counts signals by the way they came. The way with the higher count is right.

    `kill PID` reaches only the guardian, which relays it. `pkill` with a pattern, and a batch system
    that ends a job, signal both processes. The same interruption then comes twice, with an unknown
    delay in between.
    """

    def __init__(self) -> None:
        self._by_way: dict[Way, int] = {"direct": 0, "relayed": 0}

    def is_new(self, *ways: Way) -> bool:
        """Counts a signal that came by `ways`. Returns False if it had already come by another way."""
        before = max(self._by_way.values())
        for way in ways:
            self._by_way[way] += 1
        return max(self._by_way.values()) > before


class Repetitions:
    """Distinguishes one signal that reaches a process twice from a signal that is sent again.

    `timeout` signals the process that it has started, and then its process group.
    """

    def __init__(self) -> None:
        self._counted: dict[tuple[int, int], float] = {}

    def is_new(self, number: int, sender: int, now: float) -> bool:
        """Whether to count the signal. `sender`: a process ID, or 0 for the kernel, as for a terminal."""
        before = self._counted.get((number, sender))
        if sender > 0 and before is not None and now - before < _AT_ONCE:
            return False
        self._counted[number, sender] = now
        return True
