"""Who takes part in a job whose processes something else starts, and when those that wait begin a world of their own.

Knows no connection, no process and no clock; `growth.py` has what it has in common with jobs of the launcher.
"""

from __future__ import annotations

from collections.abc import Iterable

from .growth import Growth, Limits

# Hosts make no difference here.
_ANYWHERE = ""
_NO_LIMIT = 1 << 30


class WaitingRoom(Growth):
    """The processes of such a job, numbered as they come.

    Who is a rank the first of a new world tells, and may be lost before it has. So a process counts as a possible rank
    from the moment it is told where to enter until it says that it has failed there: nobody begins beside it.
    """

    def __init__(self, size: int) -> None:
        """`size`: with how many ranks a world begins."""
        super().__init__(Limits(1, _NO_LIMIT), [], {_ANYWHERE: _NO_LIMIT})
        self._size = size
        self._wishes: dict[int, int] = {}
        self._beginners: list[int] = []
        self._address = ""  # at which they meet
        # Of each possible rank the door that it was shown last; nothing where that was over a broken connection.
        self._inside: dict[int, str | None] = {}
        self._recalled: set[int] = set()  # those of them that have been told to turn back

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
        """A process is there that may have been taken for ended, and may not have heard where to enter."""
        if number in self._beginners:
            self._beginners, self._address = [], ""
        if number in self._inside:
            self._inside[number] = None
        self._alive.add(number)
        self._gone = [each for each in self._gone if each != number]

    def meet_at(self, number: int, address: str) -> None:
        """A process has opened this door. It may be one that is to turn back, and has not heard so yet."""
        if self._beginners[:1] == [number]:
            self._address = address
        if number in self._inside:
            self._show([number], address)

    def show(self, numbers: Iterable[int], address: str) -> None:
        """These processes are told to come through this door; who is a rank already does not."""
        waiting = [n for n in numbers if n in self._alive and not self.was_member(n)]
        self._show(waiting, address)

    def _show(self, numbers: Iterable[int], address: str) -> None:
        self._inside.update(dict.fromkeys(numbers, address))
        self._recalled.difference_update(numbers)

    def is_outside(self, number: int, tried: str | None) -> None:
        """A process says that it waits. `tried`: the door that it has last failed to come through, if any.

        Where another one has been shown to it since, it is on its way there.
        """
        if self._inside.get(number) in (None, tried):
            self._inside.pop(number, None)
        if tried is not None and tried == self._address:
            self._beginners, self._address = [], ""

    def formed(self, members: Iterable[int]) -> None:
        """There is a new world."""
        super().formed(members)
        for number in self.members:
            self._inside.pop(number, None)

    def begin(self) -> list[int]:
        """Those that are to form a first world now, by rank; nothing where nobody is to.

        They begin where no rank is left, be it that there has been none, and enough of them wait. Where one of them is
        lost before they have, others begin, once the rest have said that they have failed.
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
        """Those that are to turn back, each once: whom they are to meet is lost, unless they have met already."""
        if self._beginners or set(self.members) & self._alive:
            return []
        found = sorted(self._alive & set(self._inside) - self._recalled)
        self._recalled.update(found)
        return found

    @property
    def has_ranks(self) -> bool:
        """Whether a rank of the newest world is there, or a process that may be a rank."""
        return bool(self._alive & {*self.members, *self._inside})

    @property
    def has_ended(self) -> bool:
        """Whether the work is done, and who waits still waits for nothing."""
        return self.is_ending and not self.has_ranks

    @property
    def waiting_for_nothing(self) -> list[int]:
        """Those that are to be sent away then."""
        return self.ready if self.has_ended else []  # others have not said yet that they wait
