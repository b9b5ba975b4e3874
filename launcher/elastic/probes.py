"""Lets processes prove, before the ranks stop for them, that they can open connections to all ranks.

Knows no connection and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .growth import Growth


class Probes:
    """Which processes have proved it, and where they find the ranks.

    Ranks are asked for an address as soon as a process is started, so that it need not wait for that. It is asked once,
    about the ranks of that time.
    """

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._addresses: dict[int, str] = {}  # of ranks, "" if none can be opened there
        self._asked: dict[int, dict[int, str]] = {}  # what waiting processes were told
        self._successful: set[int] = set()

    @property
    def pending(self) -> list[int]:
        """The processes that are to prove it. Ranks can be reached at an address as long as there are any."""
        if not self._growth.spans_hosts:
            return []
        return [number for number in self._growth.coming if number not in self._successful]

    def listens_at(self, rank: int, address: str, pending: Iterable[int]) -> None:
        """A rank has opened an address for these processes. For others it may have closed it again by now."""
        if not set(self.pending).isdisjoint(pending):
            self._addresses[rank] = address

    def due(self, heard: Iterable[int]) -> dict[int, dict[int, str]]:
        """Which waiting processes must be told now, and the addresses of which ranks.

        `heard`: the processes with an open session. Ranks without one cannot be asked.
        """
        if not self.pending:
            self._addresses.clear()
            return {}
        ranks = set(self._growth.members) & set(heard)
        # Without any, nobody could let a process in either.
        if not ranks or not ranks <= self._addresses.keys():
            return {}
        told = {rank: self._addresses[rank] for rank in sorted(ranks) if self._addresses[rank]}
        waiting = set(self.pending) & set(self._growth.ready)
        if not told:
            self._successful |= waiting
            return {}
        due = [number for number in sorted(waiting) if self._asked.get(number) != told]
        self._asked.update(dict.fromkeys(due, told))
        return dict.fromkeys(due, told)

    def has_come_again(self, number: int) -> None:
        """It may not have heard what it was told, or not have heeded it."""
        self._asked.pop(number, None)

    def succeeded(self, number: int) -> None:
        """The process has reached all ranks that it was told of."""
        self._successful.add(number)

    def unreached(self, number: int, why: Mapping[int, str], heard: Iterable[int]) -> str:
        """The process could not reach these ranks. Returns the reason for one of them that is still there.

        `heard`: as for due(). A rank that has been lost is a member until the others have formed another world.
        """
        self._asked.pop(number, None)
        if number not in self.pending:
            return ""
        present = set(self._growth.members) & set(heard)
        return next((each for rank, each in why.items() if rank in present), "")
