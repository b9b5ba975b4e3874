"""Decides when processes are started to join a job, and which are to leave it. Knows no clock and no process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Ranks wait for few joiners at once: so many that have ended are told of.
_MOST_GONE = 64


@dataclass(frozen=True)
class Limits:
    """What the user allows.

    `least` and `most`: ranks. `changes`: how often the world may change because a rank was lost, or nothing.
    `cooldown`: seconds before another process is started after one has failed; the first number doubles with each
    failure, up to the second, until a process has joined.
    """

    least: int
    most: int
    changes: int | None = None
    cooldown: tuple[float, float] = (1.0, 60.0)


class Growth:
    """The processes of a job, by number, and how many there may be.

    `now` is in seconds, of any clock that does not go back.
    """

    def __init__(self, limits: Limits, ranks: int, slots: int) -> None:
        self._limits = limits
        self._slots = slots
        self.members = list(range(ranks))  # of the newest world
        self._alive = set(self.members)
        self._ready: list[int] = []
        self._gone: list[int] = []
        self._leaving: set[int] = set()
        self._ever_members = set(self.members)
        self._next = ranks
        self._failures = 0  # since a process has joined
        self._not_before = 0.0
        self._losses = 0
        self._is_ending = False

    # --- What has happened

    def set_slots(self, slots: int) -> None:
        """So many processes may run. Who is to leave once stays so: it may have heard of it."""
        self._slots = slots
        staying = sorted(self._alive & self._ever_members - self._leaving)
        self._leaving.update(staying[max(slots, self._limits.least) :])

    def start(self) -> int:
        """A process is started; returns its number."""
        number = self._next
        self._next += 1
        self._alive.add(number)
        return number

    def is_ready(self, number: int) -> None:
        """A process waits to join."""
        if number in self._alive and number not in self._ready and not self.was_member(number):
            self._ready.append(number)

    def formed(self, members: Iterable[int]) -> None:
        """There is a new world."""
        self.members = list(members)
        if not self._ever_members.issuperset(self.members):
            self._failures = 0
        self._ever_members.update(self.members)
        self._ready = [number for number in self._ready if number not in self._ever_members]

    def refuse(self, numbers: Iterable[int]) -> list[int]:
        """The ranks have waited for these in vain; returns which of them are to be ended."""
        refused = [n for n in numbers if n in self._alive and not self.was_member(n)]
        self._ready = [number for number in self._ready if number not in refused]
        return refused

    def ended(self, number: int, well: bool, now: float) -> None:
        """A process has ended."""
        self._alive.discard(number)
        self._ready = [each for each in self._ready if each != number]
        if not self.was_member(number):
            self._gone = [*self._gone, number][-_MOST_GONE:]
        if well:
            self._is_ending = self._is_ending or number not in self._leaving
            return
        self._losses += self.was_member(number)
        first, longest = self._limits.cooldown
        self._not_before = now + min(longest, first * 2.0 ** min(self._failures, 60))
        self._failures += 1

    # --- What follows

    def was_member(self, number: int) -> bool:
        """Whether the process has been a rank."""
        return number in self._ever_members

    def bears_loss_of(self, number: int) -> bool:
        """Whether the job goes on without this process, which has not ended yet."""
        if not self.was_member(number):
            return True
        left = len(self._alive & self._ever_members - {number})
        return left >= self._limits.least and not self._too_many_changes(self._losses + 1)

    def why_not(self, number: int) -> str:
        """Why the loss of a process ends the job."""
        if self._too_many_changes(self._losses + 1):
            return f"it is the loss number {self._losses + 1}, and --reset-limit is {self._limits.changes}"
        left = len(self._alive & self._ever_members - {number})
        return f"{left} ranks are left, fewer than --min-np {self._limits.least}"

    def _too_many_changes(self, losses: int) -> bool:
        return self._limits.changes is not None and losses > self._limits.changes

    @property
    def ready(self) -> list[int]:
        """Who waits to join."""
        return sorted(self._ready)

    @property
    def gone(self) -> list[int]:
        """Who has ended without ever having been a rank, the newest of them."""
        return list(self._gone)

    @property
    def leaving(self) -> list[int]:
        """Who is to leave, because there are too few slots: those that came last, but for the least number of ranks."""
        return sorted(self._leaving & self._alive)

    @property
    def unwanted(self) -> list[int]:
        """Who need not join any more: the job is ending, or there are too few slots."""
        joiners = sorted(self._alive - self._ever_members)
        members = self._alive & self._ever_members
        if not members:
            return joiners
        room = 0 if self._is_ending else max(0, self._room - len(members - self._leaving))
        return [number for number in joiners[room:] if number not in self._ready]

    def missing(self, now: float) -> int:
        """How many processes are to be started now."""
        if self._is_ending or now < self._not_before:
            return 0
        return max(0, self._room - len(self._alive - self._leaving))

    @property
    def _room(self) -> int:
        return min(self._limits.most, self._slots)
