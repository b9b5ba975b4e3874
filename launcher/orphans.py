"""Ends what a dead rank has left behind while mpirun still waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from .processes import children, descendants, is_alive, kill_all, reap

# Seconds between two looks, and how many of them in a row must find the same orphans.
INTERVAL = 1.0
_LOOKS = 2


class AdoptedZombies:
    """Takes leave of ended processes that this one has adopted, which else count as processes until the job's end.

    Not of its own children, of which it is to learn how they ended. Others may start children in this process, too:
    these they take leave of at once, and so what is still there after INTERVAL has been adopted.
    """

    def __init__(self, own: Callable[[], set[int]]) -> None:
        """`own`: the children that have been started here and have not been taken leave of."""
        self._own = own
        self._seen: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """To be called after SIGCHLD, in a running loop."""
        if self._timer is None:
            self._seen = self._ended()
            if self._seen:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(INTERVAL, self._take_leave)

    def _take_leave(self) -> None:
        self._timer = None
        reap(self._seen & self._ended())
        self.look()

    def _ended(self) -> set[int]:
        adopted = children(os.getpid()) - self._own()
        return {process for process in adopted if not is_alive(process)}


class OrphanWatch:
    """mpirun 5 takes a rank for alive as long as anybody holds its output open.

    So a killed rank whose own children live on would keep the job waiting for ever. The launcher
    adopts such children (see processes.adopt_orphans); when one stays while fewer of mpirun's
    children live than before, it is told to end, then killed. Daemons that the program starts on
    purpose are let be as long as all ranks live. Ranks of other hosts cannot be seen from here.
    """

    def __init__(self, mpirun: int, ranks_here: int) -> None:
        """`ranks_here`: how many ranks run on this host, as far as that is known, else 0."""
        self._mpirun = mpirun
        self._max_ranks = ranks_here
        self._seen: dict[int, int] = {}  # orphan → in how many looks in a row

    def look(self) -> None:
        """To be called every INTERVAL seconds."""
        ranks = sum(map(is_alive, children(self._mpirun)))
        self._max_ranks = max(self._max_ranks, ranks)
        adopted = children(os.getpid()) - {self._mpirun}
        reap(adopted)
        if ranks == self._max_ranks:
            self._seen.clear()
            return
        self._seen = {orphan: self._seen.get(orphan, 0) + 1 for orphan in adopted}
        for orphan, looks in self._seen.items():
            if looks >= _LOOKS:
                number = signal.SIGTERM if looks == _LOOKS else signal.SIGKILL
                kill_all({orphan, *descendants(orphan)}, number)
