"""Who takes part in a job whose processes something else starts, and when those that wait begin a world of their own.

Knows no connection, no process and no clock; `growth.py` has what it has in common with jobs of the launcher.
"""

from __future__ import annotations

from .growth import Growth, Limits

# Hosts make no difference here.
_ANYWHERE = ""
_NO_LIMIT = 1 << 30


class WaitingRoom(Growth):
    """The processes of such a job, numbered as they come."""

    def __init__(self, size: int) -> None:
        """`size`: with how many ranks a world begins."""
        super().__init__(Limits(1, _NO_LIMIT), [], {_ANYWHERE: _NO_LIMIT})
        self._size = size
        self._wishes: dict[int, int] = {}
        self._beginners: list[int] = []
        self._address = ""  # at which they meet

    def admit(self, rank: int) -> int:
        """A process has come, which would be this rank of a first world; returns its number."""
        number = self.start(_ANYWHERE)
        self._wishes[number] = rank
        return number

    def knows(self, number: object) -> bool:
        """Whether a process has this number, and no world was formed that it is not in any more.

        It may be in one of which nothing has been said yet.
        """
        if not isinstance(number, int) or number not in self._wishes:
            return False
        return number in self.members or not self.was_member(number)

    def come_back(self, number: int) -> None:
        """A process is there that may have been taken for ended, and may not have heard that it is to begin."""
        if number in self._beginners:
            self._beginners, self._address = [], ""
        self._alive.add(number)
        self._gone = [each for each in self._gone if each != number]

    def meet_at(self, number: int, address: str) -> None:
        """A process has opened this door."""
        if self._beginners[:1] == [number]:
            self._address = address

    def has_failed(self, address: str) -> None:
        """A process has not come through this door, and waits again."""
        if address == self._address:
            self._beginners, self._address = [], ""

    def begin(self) -> list[int]:
        """Those that are to form a first world now, by rank; nothing where nobody is to.

        They begin where no rank is left, be it that there has been none, and enough of them wait. Where one of them is
        lost before they have, others begin.
        """
        if self.has_ranks or self.has_ended:
            self._beginners = []
            return []
        ready = self.ready
        if self._beginners and set(self._beginners) <= set(ready):
            return []
        self._beginners, self._address = [], ""
        if len(ready) < self._size:
            return []
        first = sorted(ready, key=lambda number: (self._wishes[number], number))[: self._size]
        self._beginners = first
        return first

    @property
    def has_ranks(self) -> bool:
        """Whether a rank of the newest world is there."""
        return bool(set(self.members) & set(self.alive_on(_ANYWHERE)))

    @property
    def has_ended(self) -> bool:
        """Whether the work is done, and who waits still waits for nothing."""
        return self.is_ending and not self.has_ranks

    @property
    def waiting_for_nothing(self) -> list[int]:
        """Those that are to be sent away then."""
        return self.ready if self.has_ended else []  # others have not said yet that they wait
