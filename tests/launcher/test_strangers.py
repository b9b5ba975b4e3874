"""What strangers cost the launcher at each door at which ranks arrive."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from rueda.launcher import arrivals, strangers
from rueda.launcher.arrivals import ArrivalSocket, LocalArrivals
from rueda.launcher.builtin import new_rendezvous
from rueda.launcher.store import server
from rueda.launcher.store.server import Store, open_local
from rueda.launcher.strangers import MAX_ACCEPTED_AT_ONCE, MAX_PENDING, LimitedSay

# Long enough for a loaded machine; only guards against hangs.
WITHIN = 60.0


@dataclass
class Accepting:
    """Counts accepted connections, and refuses on demand."""

    calls: int = 0
    taken: int = 0
    refusals: int = 0  # still to come
    error: int = errno.EMFILE


@pytest.fixture
def accepting(monkeypatch: pytest.MonkeyPatch) -> Accepting:
    state = Accepting()
    accept = socket.socket.accept

    def counted(listener: socket.socket) -> tuple[socket.socket, Any]:
        state.calls += 1
        if state.refusals:
            state.refusals -= 1
            raise OSError(state.error, "the system lacks something")
        accepted = accept(listener)
        state.taken += 1
        return accepted

    monkeypatch.setattr(socket.socket, "accept", counted)
    return state


@dataclass
class Door:
    """A door for ranks in the running loop."""

    address: str
    said: list[str] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)  # uncaught
    callers: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: self.errors.append(what))

    def call(self) -> socket.socket:
        return call(self.callers, self.address)


def call(callers: contextlib.ExitStack, address: str, words: bytes = b"?") -> socket.socket:
    """Connects and sends something at once."""
    end = callers.enter_context(socket.socket(socket.AF_UNIX))
    end.connect(address.replace("@", "\0", 1))
    end.sendall(words)
    return end


@contextlib.contextmanager
def at_arrivals() -> Iterator[Door]:
    said: list[str] = []
    heard = ArrivalSocket(lambda _: None, said.append)
    door = Door(heard.address, said)
    heard._acceptor.open()
    with door.callers:
        yield door
    heard._acceptor.close()


@contextlib.contextmanager
def at_store() -> Iterator[Door]:
    address = new_rendezvous()
    door = Door(address.removeprefix("unix:"))
    store = Store(open_local(address), 2, "the secret of the job", door.said.append)
    with door.callers:
        yield door
    store.close()


Opens = Callable[[], contextlib.AbstractContextManager[Door]]
at_each_door = pytest.mark.parametrize("opens", [at_arrivals, at_store])


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not reached():
            await asyncio.sleep(0.01)


@at_each_door
def test_others_have_their_turn_however_many_come(opens: Opens, accepting: Accepting) -> None:
    count = 4 * MAX_ACCEPTED_AT_ONCE

    async def scene() -> None:
        with opens() as door:
            for _ in range(count):
                door.call()
            most = 0
            async with asyncio.timeout(WITHIN):
                while accepting.taken < count:
                    before = accepting.taken
                    await asyncio.sleep(0)  # one turn of the loop
                    most = max(most, accepting.taken - before)
            assert most <= MAX_ACCEPTED_AT_ONCE
            assert door.errors == []

    asyncio.run(scene())


@at_each_door
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_where_the_system_lacks_something_it_is_said_once_and_tried_again(
    opens: Opens, accepting: Accepting, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(strangers, "BACK_OFF", 0.01)
    monkeypatch.setattr(strangers, "_PAUSE", 1e9)

    async def scene() -> None:
        with opens() as door:
            accepting.refusals, accepting.error = 3, error
            door.call()
            await until(lambda: accepting.taken >= 1)
            assert accepting.refusals == 0
            assert door.errors == []
            (line,) = door.said
            assert line.endswith("cannot accept connections for now: the system lacks something")

    asyncio.run(scene())


@at_each_door
def test_meanwhile_nobody_is_listened_to(
    opens: Opens, accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "BACK_OFF", 1e6)

    async def scene() -> None:
        with opens() as door:
            accepting.refusals = 1000
            door.call()
            for _ in range(50):
                await asyncio.sleep(0)
            assert accepting.calls == 1

    asyncio.run(scene())


@at_each_door
def test_those_of_other_users_are_counted(
    opens: Opens, accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "_PAUSE", 1e9)
    for module in (arrivals, server):
        monkeypatch.setattr(module, "user_of", lambda _: 4711)

    async def scene() -> None:
        with opens() as door:
            for _ in range(3):
                door.call()
            await until(lambda: accepting.taken >= 3)
            (line,) = door.said
            assert line.endswith(": rejected a connection of user 4711")
            monkeypatch.setattr(strangers, "_PAUSE", 0.0)
            door.call()
            await until(lambda: len(door.said) >= 2)
            assert door.said[1] == f"{line} (2 more like this before)"

    asyncio.run(scene())


class Rank:
    """A rank that has connected to the launcher, and may say something later."""

    def __init__(self, callers: contextlib.ExitStack, address: str) -> None:
        self._end = callers.enter_context(socket.socket(socket.AF_UNIX))
        self._end.connect(address.replace("@", "\0", 1))
        self._end.setblocking(False)

    def say(self, words: bytes) -> None:
        self._end.sendall(words)

    @property
    def is_rejected(self) -> bool:
        try:
            return self._end.recv(1) == b""
        except BlockingIOError:
            return False


async def until_heard(heard: list[bytes], callers: contextlib.ExitStack, address: str) -> None:
    """Returns once the launcher has listened to all who came before."""
    heard.clear()
    call(callers, address, b"others")
    await until(lambda: heard == [b"others"])


def test_who_says_nothing_for_long_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_SILENCE", 0.01)

    async def scene() -> None:
        said: list[str] = []
        with contextlib.ExitStack() as callers:
            async with ArrivalSocket(lambda _: None, said.append) as door:
                silent = Rank(callers, door.address)
                await until(lambda: silent.is_rejected)
        assert said == [
            "the launcher's socket: rejected a connection that said nothing for too long"
        ]

    asyncio.run(scene())


@pytest.mark.parametrize("words", [b"waiting 0 2", b'{"hello": 0}\n'])
def test_a_rank_that_speaks_late_is_heard_and_keeps_nobody_waiting(words: bytes) -> None:
    async def scene() -> None:
        heard: list[bytes] = []
        said: list[str] = []
        sessions = contextlib.ExitStack()

        def on_session(connection: socket.socket, begin: bytes) -> None:
            sessions.enter_context(connection)
            heard.append(begin)

        with contextlib.ExitStack() as callers, sessions:
            async with ArrivalSocket(heard.append, said.append, on_session) as door:
                late = Rank(callers, door.address)
                await until_heard(heard, callers, door.address)
                late.say(words)
                await until(lambda: heard == [b"others", words])
        assert said == []

    asyncio.run(scene())


def test_who_ends_before_it_says_something_is_not_said() -> None:
    async def scene() -> None:
        said: list[str] = []
        heard: list[bytes] = []
        with contextlib.ExitStack() as callers:
            async with ArrivalSocket(heard.append, said.append) as door:
                with contextlib.ExitStack() as brief:
                    Rank(brief, door.address)
                    await until_heard(heard, callers, door.address)
                await until(lambda: not door._pending)
        assert (heard, said) == ([b"others"], [])

    asyncio.run(scene())


def test_the_oldest_of_too_many_who_say_nothing_makes_room() -> None:
    expected = 2

    async def scene() -> None:
        said: list[str] = []
        heard: list[bytes] = []
        with contextlib.ExitStack() as callers:
            async with ArrivalSocket(heard.append, said.append, expected=expected) as door:
                ranks = [Rank(callers, door.address) for _ in range(MAX_PENDING + expected + 1)]
                await until_heard(heard, callers, door.address)
                assert said == [
                    "the launcher's socket: rejected a connection that had to make room for others"
                ]
                first, second, *others = ranks
                assert first.is_rejected
                assert not any(rank.is_rejected for rank in (second, *others))
                second.say(b"late")
                others.append(Rank(callers, door.address))
                door._acceptor.accept()  # before the loop notices what the second has said
                assert heard == [b"others", b"late"]
                assert not any(rank.is_rejected for rank in others)
            assert all(rank.is_rejected for rank in others)  # the launcher has ended

    asyncio.run(scene())


def test_one_who_says_nothing_makes_room_if_descriptors_are_short(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "BACK_OFF", 0.01)

    async def scene() -> None:
        heard: list[bytes] = []
        with contextlib.ExitStack() as callers:
            async with ArrivalSocket(heard.append, lambda _: None) as door:
                silent = Rank(callers, door.address)
                await until_heard(heard, callers, door.address)
                accepting.refusals = 1
                await until_heard(heard, callers, door.address)
                assert silent.is_rejected

    asyncio.run(scene())


def test_what_a_rank_has_said_before_it_ended_counts_behind_however_many_strangers() -> None:
    async def scene() -> None:
        told: list[str] = []
        come = LocalArrivals(2, told.append, lambda _: None)
        with contextlib.ExitStack() as callers:
            async with come:
                for _ in range(3 * MAX_ACCEPTED_AT_ONCE):
                    call(callers, come.address)
                call(callers, come.address, b"waiting 1 2")
                call(callers, come.address, b"met 0 2")
                come.leave(0)
        assert told == []
        assert come.has_come(0)

    asyncio.run(scene())


def test_what_a_rank_has_said_late_counts_when_it_ends() -> None:
    async def scene() -> None:
        told: list[str] = []
        come = LocalArrivals(2, told.append, lambda _: None)
        with contextlib.ExitStack() as callers:
            async with come:
                late = Rank(callers, come.address)
                assert come._socket.catch_up()
                come.take(b"waiting 1 2")
                late.say(b"met 0 2")
                come.leave(0)
        assert told == []

    asyncio.run(scene())


def test_who_cannot_be_heard_for_now_is_not_taken_for_absent(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "BACK_OFF", 0.01)

    async def scene() -> None:
        told: list[str] = []
        come = LocalArrivals(3, told.append, lambda _: None)
        with contextlib.ExitStack() as callers:
            async with come:
                come.take(b"waiting 1 3")
                call(callers, come.address, b"waiting 0 3")
                accepting.refusals = 2
                come.leave(0)
                assert accepting.refusals == 1
                await until(lambda: come.has_come(0))
                assert told == []
                # No connection is pending, whatever the system lacks.
                accepting.refusals = 1
                come.leave(2)
        assert told == [
            "rank 2 ended with exit code 0 before calling rueda.init(); ranks 0 and 1 would wait there for ever"
        ]

    asyncio.run(scene())


def test_a_line_a_second_has_the_number_of_those_left_out() -> None:
    now = 0.0
    said: list[str] = []
    limited = LimitedSay(said.append, lambda: now)
    for now in (0.0, 0.5, 0.9, 1.0, 1.5, 2.5, 9.0):  # noqa: B007 - the clock reads it
        limited("somebody came")
    assert said == [
        "somebody came",
        "somebody came (2 more like this before)",
        "somebody came (1 more like this before)",
        "somebody came",
    ]
