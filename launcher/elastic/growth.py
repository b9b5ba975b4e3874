"""Decides when and where processes start to join a job, and which must leave it.

Knows no clock, no process and no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# How many ended joiners are reported. Ranks wait for few joiners at once.
_MAX_GONE = 64
# Seconds within which the ranks of a host end, one after another, if one event ends them all.
_AT_ONCE = 5.0


@dataclass(frozen=True)
class Limits:
    """The user's limits.

    `least` and `most`: numbers of ranks. `changes`: how often ranks may be lost, or None; ranks of one host that are
    lost together count once. `cooldown`: seconds until another process starts on a host after one has failed there. The
    first number doubles with each further failure, up to the second, until a process of that host joins and stays.
    """

    least: int
    most: int
    changes: int | None = None
    cooldown: tuple[float, float] = (1.0, 60.0)


@dataclass(frozen=True)
class _Loss:
    """The loss of a rank, which may include other ranks of its host."""

    until: float
    companions: frozenset[int]  # the ranks at that time


# Failures of a host are forgotten after this many times the longest pause without another failure.
_FORGETTING = 10
# Where the ranks have waited in vain, a pause is this many times as long as they did: that costs them a tenth at most.
_PAUSE_PER_WAIT = 10.0
# It doubles with each such attempt, this many times at most.
_MAX_DOUBLINGS = 3
# Whoever has waited longer, in seconds, was stopped meanwhile.
_MAX_WAIT = 3600.0


@dataclass
class _Cooldown:
    """The pause of one host after failures."""

    failures: int = 0  # since one of its processes has joined and continued into another world
    not_before: float = 0.0
    waits: int = 0  # of the ranks, in vain, since then
    closed_until: float = 0.0  # those that wait already are not let in either

    def begin(self, now: float, limits: tuple[float, float]) -> None:
        """A process has failed there. Failures during the pause may have the same cause and do not count."""
        if now < self.not_before:
            return
        first, longest = limits
        if now > self.not_before + _FORGETTING * longest:
            self.end()
        self.not_before = now + min(longest, first * 2.0 ** min(self.failures, 60))
        self.failures += 1

    def begin_after_wait(self, waited: float, now: float, limits: tuple[float, float]) -> float:
        """The ranks have waited for a process of the host in vain. Returns the pause if it is longer than usual."""
        self.begin(now, limits)
        pause = waited * _PAUSE_PER_WAIT * 2.0 ** min(self.waits, _MAX_DOUBLINGS)
        self.waits += 1
        self.closed_until = max(self.closed_until, now + pause)
        if self.closed_until <= self.not_before:
            return 0.0
        self.not_before = self.closed_until
        return self.closed_until - now

    def end(self) -> None:
        """Forgets all failures."""
        self.failures = self.waits = 0
        self.closed_until = 0.0


class Growth:
    """The processes of a job, by number, and how many each host may have.

    `now` is in seconds, from any monotonic clock.
    """

    def __init__(self, limits: Limits, hosts: Sequence[str], slots: Mapping[str, int]) -> None:
        """`hosts`: one for each of the first ranks. `slots`: the number of processes that each host may run."""
        self._limits = limits
        self._slots = dict(slots)
        self._host_of = dict(enumerate(hosts))  # for every process so far
        self._cooldowns: dict[str, _Cooldown] = {}
        self.members = list(range(len(hosts)))  # of the latest world
        self._alive = set(self.members)
        self._ready: list[int] = []
        self._gone: list[int] = []
        self._leaving: set[int] = set()
        self._ever_members = set(self.members)
        self._newcomers: set[int] = set()  # of the latest world
        self._parted: set[int] = set()  # newcomers that the others dropped in their next world
        self._ended_well: set[int] = set()  # without being asked to leave, so the job ends
        self._have_met = False
        self._next = len(hosts)
        self._losses = 0
        self._newest_loss: dict[str, _Loss] = {}  # by host

    # --- Events

    def set_slots(self, slots: Mapping[str, int]) -> None:
        """Sets how many processes each host may run. Processes already asked to leave must still leave."""
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
        """A process is being started there. Returns its number."""
        number = self._next
        self._next += 1
        self._alive.add(number)
        self._host_of[number] = host
        return number

    def host_failed(self, host: str, now: float) -> None:
        """The host cannot be reached, or the process that starts ranks there has ended."""
        self._cooldowns.setdefault(host, _Cooldown()).begin(now, self._limits.cooldown)

    def let_go(self, number: int) -> None:
        """A process that has not joined is told to end. If it joins nevertheless, it must leave."""
        self._leaving.add(number)

    def is_ready(self, number: int) -> None:
        """A process is waiting to join."""
        waits = number in self._alive and number not in self._leaving
        if waits and number not in self._ready and not self.was_member(number):
            self._ready.append(number)

    def have_met(self) -> None:
        """The first ranks have formed a world. Who has ended before that has done no work, whatever its exit code."""
        self._have_met = True

    def formed(self, members: Iterable[int]) -> None:
        """A new world has formed.

        Members drop a newcomer that does not fit from their next world. A newcomer that is alive but not in that world
        does not count as a loss, and its host gets new processes less and less often. If a process has ended well and
        the others go on without it, as after a preemption, the job does not end.
        """
        self._have_met = True
        self.members = list(members)
        self._ended_well -= self._ever_members - set(self.members)
        for number in self._newcomers & set(self.members):
            self._cooldowns.setdefault(self.host_of(number), _Cooldown()).end()
        self._parted |= self._newcomers & self._alive - set(self.members)
        self._newcomers = set(self.members) - self._ever_members
        self._ever_members.update(self.members)
        self._ready = [number for number in self._ready if number not in self._ever_members]

    def refuse(self, numbers: Iterable[int]) -> list[int]:
        """The ranks have waited for these processes in vain. Returns those that must be ended."""
        refused = [n for n in numbers if n in self._alive and not self.was_member(n)]
        self._ready = [number for number in self._ready if number not in refused]
        return refused

    def waited_in_vain(self, numbers: Iterable[int], waited: float, now: float) -> dict[str, float]:
        """So many seconds, in which the ranks did nothing else, for these processes, which have not joined.

        Their hosts pause, so that the ranks lose a tenth of the time at most. Returns the hosts for which this pause is
        longer than the usual one, and its seconds.
        """
        if not waited >= 0.0:
            raise ValueError(f"a wait of {waited} s")
        waited = min(waited, _MAX_WAIT)
        pauses = {}
        for host in dict.fromkeys(map(self.host_of, numbers)):
            cooldown = self._cooldowns.setdefault(host, _Cooldown())
            pauses[host] = cooldown.begin_after_wait(waited, now, self._limits.cooldown)
        return {host: pause for host, pause in pauses.items() if pause > 0.0}

    def ended(self, number: int, well: bool, now: float) -> None:
        """A process has ended."""
        companions = frozenset(self._alive & self._ever_members)
        self._forget(number)
        host = self.host_of(number)
        if well:
            has_parted = self.was_member(number) and number not in self.members
            if number not in self._leaving and has_parted:
                self.host_failed(host, now)  # the others have already gone on without it
            elif number not in self._leaving:
                self._ended_well.add(number)
            return
        is_loss = self.was_member(number) and number not in self._parted
        if is_loss and not self._is_part_of_a_loss(number, now):
            self._losses += 1
            self._newest_loss[host] = _Loss(now + _AT_ONCE, companions)
        self.host_failed(host, now)

    def _is_part_of_a_loss(self, number: int, now: float) -> bool:
        """Whether it belongs to a loss already counted for its host, such as a signal to all processes of the host.

        Not on a job's only host, where such a signal would end the whole job anyway: there each loss counts.
        """
        loss = self._newest_loss.get(self.host_of(number))
        return (
            self.spans_hosts and loss is not None and now < loss.until and number in loss.companions
        )

    def host_lost(self, host: str, now: float) -> None:
        """A host is lost, with all its processes. This counts as one loss."""
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

    # --- State

    def host_of(self, number: int) -> str:
        """The host on which the process runs or ran."""
        return self._host_of.get(number, "")

    def slots_of(self, host: str) -> int:
        """How many processes may run on a host; 0 if it has vanished."""
        return self._slots.get(host, 0)

    def has_slots(self, host: str) -> bool:
        """Whether processes may run there."""
        return self.slots_of(host) > 0

    @property
    def spans_hosts(self) -> bool:
        """Whether the job has, or has had, several hosts."""
        return len({*self._slots, *self._host_of.values()}) > 1

    def alive_on(self, host: str) -> list[int]:
        """The processes that are alive on a host."""
        return sorted(number for number in self._alive if self._host_of[number] == host)

    @property
    def is_ending(self) -> bool:
        """Whether a process has ended well and the others have not gone on without it: they will end, too."""
        return bool(self._ended_well)

    @property
    def is_over(self) -> bool:
        """Whether no process is alive."""
        return not self._alive

    def was_member(self, number: int) -> bool:
        """Whether the process has ever been a rank."""
        return number in self._ever_members

    def bears_loss_of(self, *numbers: int, now: float) -> bool:
        """Whether the job goes on without these processes, lost together, whose ends are not recorded yet."""
        if not any(self.was_member(number) and number not in self._parted for number in numbers):
            return True
        is_enough = self._left_without(numbers) >= self._limits.least
        return is_enough and not self._is_one_too_many(numbers, now)

    def why_not(self, *numbers: int, now: float) -> str:
        """Why the loss of these processes ends the job."""
        if self._is_one_too_many(numbers, now):
            return (
                f"it is loss number {self._losses + 1}, and --reset-limit is {self._limits.changes}"
            )
        left = self._left_without(numbers)
        are_left = "1 rank is left" if left == 1 else f"{left} ranks are left"
        beside = " without those that are to leave" if set(self.leaving) - set(numbers) else ""
        return f"{are_left}{beside}, fewer than --min-np {self._limits.least}"

    def _left_without(self, numbers: Iterable[int]) -> int:
        """How many ranks keep training or have finished. Does not count processes that must leave."""
        staying = self._alive & self._ever_members - self._leaving - self._parted
        done = self._ended_well & self._ever_members if self._have_met else set()
        return len((staying | done).difference(numbers))

    def _is_one_too_many(self, numbers: Iterable[int], now: float) -> bool:
        if self._limits.changes is None or self._losses < self._limits.changes:
            return False
        members = [number for number in numbers if self.was_member(number)]
        return not all(self._is_part_of_a_loss(number, now) for number in members)

    @property
    def ready(self) -> list[int]:
        """Processes that are waiting to join."""
        return sorted(self._ready)

    @property
    def coming(self) -> list[int]:
        """Processes that have not joined yet, whether they wait already or not."""
        return sorted(self._alive - self._ever_members - self._leaving)

    def admissible(self, now: float) -> list[int]:
        """Those of them that the ranks may let in: not while their host pauses because the ranks waited in vain."""
        closed = {host for host, each in self._cooldowns.items() if now < each.closed_until}
        return [number for number in self.ready if self.host_of(number) not in closed]

    @property
    def gone(self) -> list[int]:
        """The latest processes that have ended without ever having been a rank."""
        return list(self._gone)

    @property
    def leaving(self) -> list[int]:
        """Ranks that must leave because there are too few slots: the last to come; the least number always stays."""
        return sorted(self._leaving & self._alive)

    @property
    def unwanted(self) -> list[int]:
        """Processes that need not join any more: the job is ending, or there are too few slots."""
        joiners = self.coming
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
        """The hosts on which processes should start now, one entry per process."""
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
        """How many more processes each host may have."""
        room = dict(self._slots)
        for number in processes:
            host = self._host_of[number]
            if host in room:
                room[host] -= 1
        return room
