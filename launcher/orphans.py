"""Ends processes that a dead rank has left behind while mpirun still waits for them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from .processes import children, descendants, is_alive, kill_all, reap

# Seconds between looks, and the number of consecutive looks that must find the same orphans.
INTERVAL = 1.0
_LOOKS = 2


class AdoptedZombies:
    """Reaps ended processes that this process has adopted. Otherwise they would count as processes until the job ends.

    Does not reap its own children, whose exit status it needs. Other code in this process may also start children, but
    reaps them immediately. So zombies that are still there after INTERVAL were adopted.
    """

    def __init__(self, own: Callable[[], set[int]]) -> None:
        """`own`: returns the children that were started here and have not been reaped."""
        self._own = own
        self._seen: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Call after SIGCHLD, in a running loop."""
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
    """Ends the orphans of dead ranks under mpirun 5, which believes a rank alive while a process holds its output open.

    If a rank is killed but its children live on, the job would wait forever. The launcher adopts
    such children (see processes.adopt_orphans). If one stays while fewer of mpirun's children are
    alive than before, it is told to end, then killed. Daemons that the program starts on purpose are
    left alone as long as all ranks are alive. Ranks on other hosts are not visible from here.
    """

    def __init__(self, mpirun: int, ranks_here: int) -> None:
        """`ranks_here`: the number of ranks on this host, or 0 if it is not known."""
        self._mpirun = mpirun
        self._max_ranks = ranks_here
        self._seen: dict[int, int] = {}  # orphan → number of consecutive looks

    def look(self) -> None:
        """Call every INTERVAL seconds."""
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
