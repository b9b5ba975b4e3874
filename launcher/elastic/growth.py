"""Decides when and where processes are started to join a job, and which are to leave it.

Knows no clock, no process and no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Ranks wait for few joiners at once: so many that have ended are told of.
_MAX_GONE = 64
# Within which the ranks of a host end where something ends them all, one after the other; seconds.
_AT_ONCE = 5.0


@dataclass(frozen=True)
class Limits:
    """What the user allows.

    `least` and `most`: ranks. `changes`: how often ranks may be lost, or nothing; those of a host are lost at once.
    `cooldown`: seconds before another process is started on a host after one has failed there; the first number
    doubles with each failure after that, up to the second, until a process of that host has joined and stays.
    """

    least: int
    most: int
    changes: int | None = None
    cooldown: tuple[float, float] = (1.0, 60.0)


@dataclass(frozen=True)
class _Loss:
    """Of a rank, which others of its host may be part of."""

    until: float
    companions: frozenset[int]  # who was a rank then


# For how many times the longest pause a host must have gone without a failure for earlier ones to be forgotten.
_FORGETTING = 10


@dataclass
class _Cooldown:
    """Of one host."""

    failures: int = 0  # since a process of it has joined, and has gone on to another world
    not_before: float = 0.0

    def begin(self, now: float, limits: tuple[float, float]) -> None:
        """Something has failed there; what fails until the pause is over may have the same cause, and adds nothing."""
        if now < self.not_before:
            return
        first, longest = limits
        if now > self.not_before + _FORGETTING * longest:
            self.failures = 0
        self.not_before = now + min(longest, first * 2.0 ** min(self.failures, 60))
        self.failures += 1


class Growth:
    """The processes of a job, by number, and how many there may be on which host.

    `now` is in seconds, of any clock that does not go back.
    """

    def __init__(self, limits: Limits, hosts: Sequence[str], slots: Mapping[str, int]) -> None:
        """`hosts`: of each of the first ranks. `slots`: how many processes may run on which host."""
        self._limits = limits
        self._slots = dict(slots)
        self._host_of = dict(enumerate(hosts))  # of each process that there has been
        self._cooldowns: dict[str, _Cooldown] = {}
        self.members = list(range(len(hosts)))  # of the newest world
        self._alive = set(self.members)
        self._ready: list[int] = []
        self._gone: list[int] = []
        self._leaving: set[int] = set()
        self._ever_members = set(self.members)
        self._newcomers: set[int] = set()  # of the newest world
        self._parted: set[int] = set()  # newcomers without which the others have gone on at once
        self._ended_well: set[int] = set()  # with which the job ends, for they were not to leave
        self._next = len(hosts)
        self._losses = 0
        self._newest_loss: dict[str, _Loss] = {}  # of each host

    # --- What has happened

    def set_slots(self, slots: Mapping[str, int]) -> None:
        """So many processes may run on which host. Who is to leave once stays so: it may have heard of it."""
        self._slots = dict(slots)
        room = dict(slots)
        staying = sorted(self._alive & self._ever_members - self._leaving)
        surplus = []
        for number in staying:
            host = self._host_of[number]
            if room.get(host, 0) > 0:
                room[host] -= 1
            else:
                surplus.append(number)
        spared = len(staying) - self._limits.least
        self._leaving.update(surplus[max(0, len(surplus) - max(0, spared)) :])

    def start(self, host: str) -> int:
        """A process is started there; returns its number."""
        number = self._next
        self._next += 1
        self._alive.add(number)
        self._host_of[number] = host
        return number

    def host_failed(self, host: str, now: float) -> None:
        """The host cannot be reached, or what starts processes there has ended."""
        self._cooldowns.setdefault(host, _Cooldown()).begin(now, self._limits.cooldown)

    def let_go(self, number: int) -> None:
        """A process that has not joined is told to end; where it joins nevertheless it is to leave."""
        self._leaving.add(number)

    def is_ready(self, number: int) -> None:
        """A process waits to join."""
        waits = number in self._alive and number not in self._leaving
        if waits and number not in self._ready and not self.was_member(number):
            self._ready.append(number)

    def formed(self, members: Iterable[int]) -> None:
        """There is a new world.

        Members part with a newcomer that does not fit, in their next world: one that is not in it, and lives, is no
        loss to them, and others like it are to come less and less often. Where one has ended well and they go on
        without it, as after a preemption, the job does not end with that.
        """
        self.members = list(members)
        self._ended_well -= self._ever_members - set(self.members)
        for number in self._newcomers & set(self.members):
            self._cooldowns.setdefault(self.host_of(number), _Cooldown()).failures = 0
        self._parted |= self._newcomers & self._alive - set(self.members)
        self._newcomers = set(self.members) - self._ever_members
        self._ever_members.update(self.members)
        self._ready = [number for number in self._ready if number not in self._ever_members]

    def refuse(self, numbers: Iterable[int]) -> list[int]:
        """The ranks have waited for these in vain; returns which of them are to be ended."""
        refused = [n for n in numbers if n in self._alive and not self.was_member(n)]
        self._ready = [number for number in self._ready if number not in refused]
        return refused

    def ended(self, number: int, well: bool, now: float) -> None:
        """A process has ended."""
        companions = frozenset(self._alive & self._ever_members)
        self._forget(number)
        host = self.host_of(number)
        if well:
            has_parted = self.was_member(number) and number not in self.members
            if number not in self._leaving and has_parted:
                self.host_failed(host, now)  # the others have gone on without it already
            elif number not in self._leaving:
                self._ended_well.add(number)
            return
        is_loss = self.was_member(number) and number not in self._parted
        if is_loss and not self._is_part_of_a_loss(number, now):
            self._losses += 1
            self._newest_loss[host] = _Loss(now + _AT_ONCE, companions)
        self.host_failed(host, now)

    def _is_part_of_a_loss(self, number: int, now: float) -> bool:
        """Whether it is counted already, with other ranks of its host: a signal to all of a host's processes, say.

        On a job's only host that would end the job, too: there each rank is lost by itself.
        """
        loss = self._newest_loss.get(self.host_of(number))
        return (
            self.spans_hosts and loss is not None and now < loss.until and number in loss.companions
        )

    def host_lost(self, host: str, now: float) -> None:
        """All processes of a host are gone with it, which is one loss."""
        gone = self.alive_on(host)
        members = [number for number in gone if self.was_member(number)]
        self._losses += any(not self._is_part_of_a_loss(number, now) for number in members)
        for number in gone:
            self._forget(number)
        self.host_failed(host, now)

    def _forget(self, number: int) -> None:
        self._alive.discard(number)
        self._ready = [each for each in self._ready if each != number]
        if not self.was_member(number):
            self._gone = [*self._gone, number][-_MAX_GONE:]

    # --- What follows

    def host_of(self, number: int) -> str:
        """Where the process runs, or has run."""
        return self._host_of.get(number, "")

    def slots_of(self, host: str) -> int:
        """How many processes may run on a host; 0 where it has vanished."""
        return self._slots.get(host, 0)

    def has_slots(self, host: str) -> bool:
        """Whether processes may run there."""
        return self.slots_of(host) > 0

    @property
    def spans_hosts(self) -> bool:
        """Whether there are several, or have been."""
        return len({*self._slots, *self._host_of.values()}) > 1

    def alive_on(self, host: str) -> list[int]:
        """The processes of a host."""
        return sorted(number for number in self._alive if self._host_of[number] == host)

    @property
    def is_ending(self) -> bool:
        """Whether a process has ended well, without which the others have not gone on: they will end, too."""
        return bool(self._ended_well)

    @property
    def is_over(self) -> bool:
        """Whether no process is left."""
        return not self._alive

    def was_member(self, number: int) -> bool:
        """Whether the process has been a rank."""
        return number in self._ever_members

    def bears_loss_of(self, *numbers: int, now: float) -> bool:
        """Whether the job goes on without these processes, which are lost at once and have not ended yet."""
        if not any(self.was_member(number) and number not in self._parted for number in numbers):
            return True
        is_enough = self._left_without(numbers) >= self._limits.least
        return is_enough and not self._is_one_too_many(numbers, now)

    def why_not(self, *numbers: int, now: float) -> str:
        """Why the loss of these processes ends the job."""
        if self._is_one_too_many(numbers, now):
            return f"it is the loss number {self._losses + 1}, and --reset-limit is {self._limits.changes}"
        left = self._left_without(numbers)
        are_left = "1 rank is left" if left == 1 else f"{left} ranks are left"
        beside = " beside those that are to leave" if set(self.leaving) - set(numbers) else ""
        return f"{are_left}{beside}, fewer than --min-np {self._limits.least}"

    def _left_without(self, numbers: Iterable[int]) -> int:
        """How many ranks train on, or have done so to the end; who is to leave does so at any moment."""
        staying = self._alive & self._ever_members - self._leaving - self._parted
        done = self._ended_well & self._ever_members
        return len((staying | done).difference(numbers))

    def _is_one_too_many(self, numbers: Iterable[int], now: float) -> bool:
        if self._limits.changes is None or self._losses < self._limits.changes:
            return False
        members = [number for number in numbers if self.was_member(number)]
        return not all(self._is_part_of_a_loss(number, now) for number in members)

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
        joiners = sorted(self._alive - self._ever_members - self._leaving)
        members = self._alive & self._ever_members
        if not members:
            return joiners
        staying = members - self._leaving
        total = 0 if self.is_ending else self._limits.most - len(staying)
        room = self._room_beside(staying)
        unwanted = []
        for number in joiners:
            host = self._host_of[number]
            if total > 0 and room.get(host, 0) > 0:
                total -= 1
                room[host] -= 1
            elif number not in self._ready:
                unwanted.append(number)
        return unwanted

    def missing(self, now: float) -> list[str]:
        """On which hosts processes are to be started now; a host for each process."""
        if self.is_ending:
            return []
        staying = self._alive - self._leaving
        total = self._limits.most - len(staying)
        wanted: list[str] = []
        for host, room in self._room_beside(staying).items():
            cooldown = self._cooldowns.get(host)
            if cooldown is None or now >= cooldown.not_before:
                wanted += [host] * min(room, total - len(wanted))
        return wanted

    def _room_beside(self, processes: set[int]) -> dict[str, int]:
        """How many more each host may have."""
        room = dict(self._slots)
        for number in processes:
            host = self._host_of[number]
            if host in room:
                room[host] -= 1
        return room
