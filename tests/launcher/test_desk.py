"""Processes join, die, are expelled and are slow in any order: there are never two worlds."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rueda.launcher.elastic import reception

Message = dict[str, Any]


class Line:
    """Replaces the desk's connection."""

    def __init__(
        self,
        process: Process,
        _begin: bytes,
        hear: Callable[[Line, Message], None],
        end: Callable[[Line], None],
    ) -> None:
        self.number = -1
        self.is_open = True
        self.hear, self._end = hear, end
        self._process = process
        process.line = self

    def send(self, **message: Any) -> None:
        """Queues a message that the process has not read yet."""
        self._process.told.append(message)

    def close(self) -> None:
        """Ends the connection."""
        if self.is_open:
            self.is_open = False
            self._end(self)


class Door:
    """Replaces the desk's listener."""

    def __init__(self, *_: object) -> None:
        pass

    def open(self) -> None:
        """Does nothing: tests bring the processes."""

    def close(self) -> None:
        """Does nothing."""


@dataclass(eq=False)
class Process:
    """A process known to the reception: on its way through a door, in a world, or waiting."""

    number: int = -1
    line: Any = None
    told: deque[Message] = field(default_factory=deque)  # not read yet
    said: deque[Message] = field(default_factory=deque)  # not heard yet
    joiners: list[int] = field(default_factory=list)
    door: str = ""
    world: int = 0  # 0 for none
    is_alive: bool = True
    is_expelled: bool = False


class Job:
    """Processes and their desk. Each method is one event; `chance` picks the possible events."""

    def __init__(self, size: int, chance: random.Random) -> None:
        self.size = size
        self.chance = chance
        self.desk = reception.Desk(None, b"", size)  # type: ignore[arg-type] - Door takes anything
        self.processes: list[Process] = []
        self.doors: dict[str, list[int]] = {}  # the numbers of those who enter, by rank
        self.worlds = 0
        self.roughness = chance.choice([0.1, 0.25, 0.5])  # how often something happens to the job
        self.losses = 0.2  # share of worlds that lose a rank while they form

    def those(self, is_wanted: Callable[[Process], bool]) -> list[Process]:
        """Returns the living processes that satisfy the condition."""
        return [each for each in self.processes if each.is_alive and is_wanted(each)]

    def ranks(self) -> list[Process]:
        """Returns the ranks of the only world."""
        ranks = self.those(lambda each: each.world > 0)
        assert len({each.world for each in ranks}) <= 1, "two worlds"
        return ranks

    # --- What processes do

    def come(self) -> None:
        """Adds a process."""
        process = Process()
        self.processes.append(process)
        self.desk._take({"rank": self.chance.randrange(self.size)}, process)  # type: ignore[arg-type]
        process.number = process.told.popleft()["number"]
        process.said.append({"ready": process.number})

    def die(self, process: Process) -> None:
        """Kills the process; the last part of what it was about to say may be lost."""
        for _ in range(self.chance.randint(0, len(process.said))):
            self.hear(process)
        process.is_alive = False
        process.line.close()

    def expel(self, process: Process) -> None:
        """The others go on without the process, which lives on in no world."""
        process.world, process.is_expelled = 0, True

    def hear(self, process: Process) -> None:
        """The desk hears the oldest message of the process."""
        message = process.said.popleft()
        if process.line.is_open:
            process.line.hear(process.line, message)

    def read(self, process: Process) -> None:
        """The process reads its oldest message."""
        message = process.told.popleft()
        process.joiners = message.get("joiners", process.joiners)
        if "over" in message:
            process.is_alive = False
        elif process.world == 0 and not process.is_expelled:
            if {"enter", "begin", "recall"} & set(message) and process.door:
                self.fail(process)
            if "enter" in message:
                process.door = message["enter"]["address"]
            if "begin" in message:
                self.open(process, message["begin"]["numbers"], 1, members=0)

    def fail(self, process: Process) -> None:
        """The process does not come through its door and waits again."""
        process.said.append({"ready": process.number, "after": process.door})
        process.door = ""

    def open(self, process: Process, numbers: list[int], old: int, **more: int) -> None:
        """Opens a door; the first `old` processes that enter know of it already."""
        address = f"door {len(self.doors)}"
        self.doors[address] = numbers
        if process.world == 0:
            process.door = address
        ranks = {str(numbers[rank]): rank for rank in range(old, len(numbers))}
        door = {"address": address, "joiners": ranks, "numbers": numbers, **more}
        process.said.append({"door": door})

    def take_in(self) -> None:
        """The ranks open a door to the waiting processes they know of."""
        ranks = self.ranks()
        numbers = [each.number for each in ranks]
        joiners = [number for number in ranks[0].joiners if number not in numbers]
        if joiners:
            self.open(ranks[0], numbers + joiners, len(numbers))

    def form(self, address: str) -> None:
        """All have arrived and form a world; one rank may be lost at the last moment."""
        self.worlds += 1
        members = [self.processes[number] for number in self.doors.pop(address)]
        if len(members) > 1 and self.chance.random() < self.losses:
            lost = members.pop(self.chance.randrange(len(members)))
            lost.world, lost.is_expelled = 0, lost.world > 0
            if not lost.is_expelled:
                self.fail(lost)
        for each in members:
            each.door, each.world = "", self.worlds
        self.ranks()
        self.tell_formed()

    def tell_formed(self) -> None:
        """The first rank reports the world, sooner or later."""
        ranks = self.ranks()
        ranks[0].said.append({"formed": {"members": [each.number for each in ranks]}})

    def formable(self) -> list[str]:
        """Returns doors at which all have arrived; members of a world leave it together."""
        numbers = [each.number for each in self.ranks()]
        found = []
        for address, coming in self.doors.items():
            members = [n for n in coming if self.processes[n].world > 0]
            joiners = self.those(lambda each: each.door == address)  # noqa: B023
            is_whole = len(members) + len(joiners) == len(coming)
            if joiners and is_whole and (not members or sorted(members) == numbers):
                found.append(address)
        return found

    # --- Which events happen

    def events(self) -> Iterator[Callable[[], None]]:
        """Yields the events that happen by themselves."""
        for each in self.those(lambda each: bool(each.said)):
            yield lambda each=each: self.hear(each)  # type: ignore[misc]
        for each in self.those(lambda each: bool(each.told)):
            yield lambda each=each: self.read(each)  # type: ignore[misc]
        for address in self.formable():
            yield lambda address=address: self.form(address)  # type: ignore[misc]

    def blows(self) -> Iterator[Callable[[], None]]:
        """Yields what may happen to the job."""
        yield self.come
        for each in self.those(lambda _: True):
            yield lambda each=each: self.die(each)  # type: ignore[misc]
        for each in self.those(lambda each: each.door != ""):
            yield lambda each=each: self.fail(each)  # type: ignore[misc]
        if ranks := self.ranks():
            yield self.take_in
            yield self.tell_formed
            if len(ranks) > 1:
                yield lambda: self.expel(self.chance.choice(ranks))

    async def live(self, steps: int) -> None:
        """Runs this many events."""
        for _ in range(steps):
            mild = list(self.events())
            wild = list(self.blows())
            is_rough = not mild or self.chance.random() < self.roughness
            self.chance.choice(wild if is_rough else mild)()
            await asyncio.sleep(0)  # lets the desk look

    async def settle(self) -> None:
        """Delivers everything; who meets nobody gives up. Returns once nothing happens any more."""
        for _ in range(2000):
            await asyncio.sleep(0)
            if events := list(self.events()):
                events[0]()
            elif late := self.those(lambda each: each.door != ""):
                self.fail(late[0])
            else:
                return
        raise AssertionError("it goes on and on")


@contextmanager
def without_sockets() -> Iterator[None]:
    """Gives the desk lines instead of connections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reception, "Session", Line)
        patch.setattr(reception, "Doorkeeper", Door)
        patch.setattr(reception, "notice_silence", lambda _: None)
        yield


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3), st.integers(0, 1 << 32))
def test_there_never_are_two_worlds_and_who_waits_in_the_end_is_in_one(
    size: int, seed: int
) -> None:
    async def run() -> None:
        job = Job(size, random.Random(seed))
        await job.live(100)
        for each in job.those(lambda each: each.is_expelled):
            job.die(each)
        for each in job.ranks():
            job.die(each)
        for _ in range(size):
            job.come()
        await job.settle()
        assert job.ranks(), "those that wait do not begin"

    with without_sockets():
        asyncio.run(run())


async def world_of_two() -> Job:
    """Returns a job with a world of two that the desk has heard of."""
    job = Job(2, random.Random(0))
    job.losses = 0
    job.come()
    job.come()
    await job.settle()
    return job


def let_in_another(job: Job) -> Process:
    """The ranks form a world with a newcomer and have not reported it yet."""
    speaker = job.ranks()[0]
    job.come()
    newcomer = job.processes[-1]
    job.hear(newcomer)  # that the newcomer waits
    while newcomer.number not in speaker.joiners:
        job.read(speaker)
    job.take_in()
    job.hear(speaker)  # where the door is
    while not newcomer.door:
        job.read(newcomer)
    job.form(job.formable()[0])
    assert newcomer in job.ranks()
    return newcomer


async def nobody_begins_beside(job: Job, rank: Process) -> None:
    """Two more processes join the only world, which has only this rank."""
    job.come()
    job.come()
    await job.settle()
    assert job.ranks() == [rank]
    job.tell_formed()
    job.take_in()
    await job.settle()
    assert job.ranks() == [rank, *job.processes[-2:]]


def test_nobody_begins_beside_who_was_let_in_by_ranks_that_are_gone() -> None:
    async def run() -> None:
        job = await world_of_two()
        newcomer = let_in_another(job)
        for each in job.ranks()[:2]:
            each.said.clear()  # before it could report the world of three
            job.die(each)
        await nobody_begins_beside(job, newcomer)

    with without_sockets():
        asyncio.run(run())


def test_who_was_expelled_does_not_say_who_the_ranks_are() -> None:
    async def run() -> None:
        job = await world_of_two()
        frozen, other = job.ranks()
        job.tell_formed()  # it is frozen before the desk hears this
        job.expel(frozen)
        job.tell_formed()
        job.hear(other)
        newcomer = let_in_another(job)
        job.hear(other)
        job.hear(frozen)
        job.die(other)
        job.die(frozen)
        await nobody_begins_beside(job, newcomer)

    with without_sockets():
        asyncio.run(run())


def test_who_is_on_the_way_to_one_that_is_lost_turns_back() -> None:
    async def run() -> None:
        job = Job(2, random.Random(0))
        job.come()
        job.come()
        while not job.formable():
            await asyncio.sleep(0)
            next(job.events())()
        opener = next(each for each in job.processes if each.number == job.doors["door 0"][0])
        other = job.processes[1 - opener.number]
        job.die(opener)
        await asyncio.sleep(0)
        while other.door:
            job.read(other)  # reads in the end that it is recalled

    with without_sockets():
        asyncio.run(run())
