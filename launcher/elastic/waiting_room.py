"""Tracks the processes of a job that another system starts, and decides when waiting ones form a first world.

Knows no connection, no process and no clock. `growth.py` has the part shared with the launcher's own jobs.
"""

from __future__ import annotations

from collections.abc import Iterable

from .growth import Growth, Limits

_NO_LIMIT = 1 << 30


class WaitingRoom(Growth):
    """The processes of such a job, numbered in the order in which they come.

    Only the first rank of a new world reports its members, and it may be lost before it does. So a process counts as
    a possible rank from the moment it is told where to join until it reports that it failed there. Until then no
    other world starts.
    """

    def __init__(self, size: int) -> None:
        """`size`: the number of ranks with which a world starts."""
        super().__init__(Limits(1, _NO_LIMIT), [], {})
        self._size = size
        self._wishes: dict[int, int] = {}
        self._beginners: list[int] = []
        self._address = ""  # where they meet
        # Possible ranks, with the door each was last shown; None if its connection has broken since.
        self._inside: dict[int, str | None] = {}
        self._recalled: set[int] = set()  # possible ranks that were told to turn back

    def admit(self, rank: int, host: str = "") -> int:
        """A process has come from `host` that would be this rank of a first world. Returns its number."""
        number = self.start(host)
        self._wishes[number] = rank
        return number

    def knows(self, number: object) -> bool:
        """Whether a process has this number, and no later world has formed without it.

        It may be in a world that has not been reported yet.
        """
        if not isinstance(number, int) or number not in self._wishes:
            return False
        return number in self.members or not self.was_member(number)

    def come_back(self, number: int) -> None:
        """A process has reconnected. It may have counted as ended, and may not have heard where to join."""
        if number in self._beginners:
            self._beginners, self._address = [], ""
        if number in self._inside:
            self._inside[number] = None
        self._alive.add(number)
        self._gone = [each for each in self._gone if each != number]

    def meet_at(self, number: int, address: str) -> None:
        """A process has opened this door. It may have been told to turn back, and not know it yet."""
        if self._beginners[:1] == [number]:
            self._address = address
        if number in self._inside:
            self._show([number], address)

    def show(self, numbers: Iterable[int], address: str) -> None:
        """These processes are told to join through this door. Those that are ranks already do not."""
        waiting = [n for n in numbers if n in self._alive and not self.was_member(n)]
        self._show(waiting, address)

    def _show(self, numbers: Iterable[int], address: str) -> None:
        self._inside.update(dict.fromkeys(numbers, address))
        self._recalled.difference_update(numbers)

    def is_outside(self, number: int, tried: str | None) -> None:
        """A process reports that it waits. `tried`: the door at which it last failed, if any.

        If it has been shown another door since, it is on its way there.
        """
        if self._inside.get(number) in (None, tried):
            self._inside.pop(number, None)
        if tried is not None and tried == self._address:
            self._beginners, self._address = [], ""

    def formed(self, members: Iterable[int]) -> None:
        """A new world has formed."""
        super().formed(members)
        for number in self.members:
            self._inside.pop(number, None)

    def begin(self) -> list[int]:
        """The processes that should form a first world now, by rank; empty if none should.

        They start if no rank is left (or there never was one) and enough of them wait. If one of them is lost before
        the world forms, others start once the rest have reported that they failed.
        """
        if set(self.members) & self._alive or self.has_ended:
            self._beginners = []
            return []
        ready = self.ready
        if self._beginners and set(self._beginners) <= set(ready):
            return []
        self._beginners, self._address = [], ""
        if self.has_ranks or len(ready) < self._size:
            return []
        first = sorted(ready, key=lambda number: (self._wishes[number], number))[: self._size]
        self._beginners = first
        self._show(first[:1], "")
        return first

    def recall(self) -> list[int]:
        """Processes that should turn back, each once: a process they should meet is lost before they have met."""
        if self._beginners or set(self.members) & self._alive:
            return []
        found = sorted(self._alive & set(self._inside) - self._recalled)
        self._recalled.update(found)
        return found

    @property
    def has_ranks(self) -> bool:
        """Whether a rank of the latest world, or a possible rank, exists."""
        return bool(self._alive & {*self.members, *self._inside})

    @property
    def has_ended(self) -> bool:
        """Whether the work is done, so that processes still waiting wait for nothing."""
        return self.is_ending and not self.has_ranks

    @property
    def waiting_for_nothing(self) -> list[int]:
        """The waiting processes to send away once the work is done."""
        return self.ready if self.has_ended else []  # others have not reported yet that they wait
