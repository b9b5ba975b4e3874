"""The store at which the ranks of a job meet, as its clients see it."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from rueda.launcher import strangers
from rueda.launcher.builtin import new_rendezvous
from rueda.launcher.store import server
from rueda.launcher.store.server import Store, open_local
from rueda.launcher.store.words import (
    MAX_FRAME,
    MAX_PENDING_FRAME,
    Nonsense,
    Proofs,
    Verb,
    Words,
    fresh_word,
    joined,
)
from rueda.launcher.strangers import MAX_PENDING

SECRET = "what the ranks of this job know"
# Long enough for a loaded machine; only guards against hangs.
WITHIN = 60.0


class Caller:
    """A connection to the store that speaks word by word."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._read = bytearray()

    @classmethod
    async def at(cls, address: str) -> Caller:
        end = socket.socket(socket.AF_UNIX)
        end.setblocking(False)
        name = address.removeprefix("unix:").replace("@", "\0", 1)
        await asyncio.get_running_loop().sock_connect(end, name)
        return cls(*await asyncio.open_connection(sock=end))

    def say(self, verb: Verb, **rest: int | bytes) -> None:
        self.write(Words(verb, **rest).frame())

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def hear(self) -> Words | None:
        """Returns the next answer, or None if the store closed the connection."""
        async with asyncio.timeout(WITHIN):
            while (words := Words.take_from(self._read, MAX_FRAME)) is None:
                piece = await self._reader.read(1 << 16)
                if not piece:
                    return None
                self._read += piece
            return words

    async def ask(self, verb: Verb, **rest: int | bytes) -> Words | None:
        self.say(verb, **rest)
        return await self.hear()

    def leave(self) -> None:
        self._writer.close()


class Meeting:
    """A store and its callers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.failures: list[int] = []
        self.address = new_rendezvous()
        self.said: list[str] = []
        self.store = Store(
            open_local(self.address), size, SECRET, self.said.append, self.failures.append
        )

    async def greet(self, rank: int, size: int | None = None, secret: str = SECRET) -> Words | None:
        self.caller = await Caller.at(self.address)
        hello = Words(Verb.HELLO, rank, size or self.size, key=fresh_word())
        challenge = await self.caller.ask(hello.verb, rank=rank, size=hello.size, key=hello.key)
        assert challenge is not None
        assert challenge.verb == Verb.CHALLENGE
        assert challenge.value == Proofs(SECRET).of_store(hello, challenge.key)
        proof = Proofs(secret).of_rank(hello, challenge.key)
        return await self.caller.ask(Verb.PROVE, value=proof)

    async def enter(self, rank: int) -> Caller:
        assert await self.greet(rank) == Words(Verb.OK)
        return self.caller

    async def enter_all(self) -> list[Caller]:
        return [await self.enter(rank) for rank in range(self.size)]


@asynccontextmanager
async def meeting(size: int) -> AsyncIterator[Meeting]:
    opened = Meeting(size)
    try:
        yield opened
    finally:
        opened.store.close()


def play(size: int, scene: Callable[[Meeting], Awaitable[None]]) -> None:
    async def act() -> None:
        async with meeting(size) as opened:
            await scene(opened)

    asyncio.run(act())


def said(words: Words | None) -> str:
    assert words is not None
    assert words.verb in (Verb.ERROR, Verb.LOST)
    return words.value.decode()


def test_what_all_have_put_comes_with_the_barrier() -> None:
    async def scene(meeting: Meeting) -> None:
        first, second = await meeting.enter_all()
        assert await first.ask(Verb.PUT, key=b"a", value=b"1") == Words(Verb.OK)
        first.say(Verb.BARRIER)
        assert await second.ask(Verb.PUT, key=b"b", value=b"") == Words(Verb.OK)
        everything = Words(Verb.OK, value=joined(b"a", b"1", b"b", b""))
        assert await second.ask(Verb.BARRIER) == everything
        assert await first.hear() == everything
        assert await first.ask(Verb.GET, key=b"b") == Words(Verb.OK)
        first.say(Verb.BARRIER)
        assert await second.ask(Verb.BARRIER) == Words(Verb.OK)  # nothing new

    play(2, scene)


def test_a_key_is_put_once_and_asked_for_when_it_is_there() -> None:
    async def scene(meeting: Meeting) -> None:
        (only,) = await meeting.enter_all()
        assert "no rank has put key 'a'" in said(await only.ask(Verb.GET, key=b"a"))
        await only.ask(Verb.PUT, key=b"a", value=b"1")
        assert "key 'a' was put twice" in said(await only.ask(Verb.PUT, key=b"a", value=b"2"))
        assert "not a question" in said(await only.ask(Verb.OK))

    play(1, scene)


def test_who_is_missing_is_told() -> None:
    async def scene(meeting: Meeting) -> None:
        first, _ = await meeting.enter(0), await meeting.enter(1)
        first.say(Verb.BARRIER)
        missing = await first.ask(Verb.MISSING)
        assert missing == Words(Verb.MISSING, value=b"ranks 1 and 2")

    play(3, scene)


def test_a_rank_that_has_ended_is_named_to_who_waits_and_to_who_comes_later() -> None:
    async def scene(meeting: Meeting) -> None:
        first = await meeting.enter(0)
        first.say(Verb.BARRIER)
        assert await first.ask(Verb.MISSING) is not None  # so it waits
        assert meeting.store.is_needed(2)
        assert not meeting.store.is_needed(3)  # a process that will join later
        meeting.store.lose(2, "killed by SIGKILL (Killed)")
        why = "rank 2 ended before the world was formed: killed by SIGKILL (Killed)"
        lost = Words(Verb.LOST, rank=2, value=why.encode())
        assert await first.hear() == lost
        assert meeting.failures == [2]
        second = await meeting.enter(1)
        assert await second.ask(Verb.BARRIER) == lost

    play(3, scene)


def test_of_several_that_have_ended_the_first_is_named() -> None:
    async def scene(meeting: Meeting) -> None:
        first = await meeting.enter(0)
        meeting.store.lose(2, "exit code 3")
        first.leave()
        meeting.store.lose(0, "exit code 1")
        second = await meeting.enter(1)
        assert "rank 2 ended" in said(await second.ask(Verb.BARRIER))

    play(3, scene)


def test_a_rank_that_ends_before_anybody_waits_is_missed_once_somebody_does() -> None:
    async def scene(meeting: Meeting) -> None:
        assert not meeting.store.is_needed(0)  # they may meet elsewhere
        meeting.store.lose(0, "exit code 3")
        assert meeting.failures == []
        second = await meeting.enter(1)
        assert "rank 0 ended" in said(await second.ask(Verb.BARRIER))
        assert meeting.failures == [0]

    play(2, scene)


def test_a_rank_that_leaves_is_named_and_blamed_when_it_has_ended() -> None:
    async def scene(meeting: Meeting) -> None:
        first, second, third = await meeting.enter_all()
        first.say(Verb.BARRIER)
        third.leave()
        assert "rank 2 left while the world was formed" in said(await first.hear())
        assert meeting.failures == []
        assert "rank 2 left" in said(await second.ask(Verb.BARRIER))
        meeting.store.lose(2, "exit code 1")
        assert meeting.failures == [2]

    play(3, scene)


def test_a_loss_after_the_last_barrier_keeps_nobody_from_going_on() -> None:
    async def scene(meeting: Meeting) -> None:
        first, second = await meeting.enter_all()
        await first.ask(Verb.PUT, key=b"a", value=b"1")
        first.say(Verb.BARRIER)
        await second.ask(Verb.BARRIER)
        second.leave()
        meeting.store.lose(1, "exit code 1")
        assert not meeting.store.is_needed(1)
        assert await first.hear() is not None
        assert await first.ask(Verb.GET, key=b"a") == Words(Verb.OK, value=b"1")
        first.leave()
        await asyncio.sleep(0.2)
        assert meeting.failures == []

    play(2, scene)


def test_the_next_world_begins_with_nothing_and_waits_for_nobody_of_the_last() -> None:
    async def scene(meeting: Meeting) -> None:
        first, second = await meeting.enter_all()
        await first.ask(Verb.PUT, key=b"a", value=b"1")
        first.say(Verb.BARRIER)
        await second.ask(Verb.BARRIER)
        first.leave()
        assert await second.ask(Verb.GET, key=b"a") == Words(Verb.OK, value=b"1")
        again = await meeting.enter(0)  # while rank 1 is still in the previous world
        assert "no rank has put" in said(await again.ask(Verb.GET, key=b"a"))
        again.say(Verb.BARRIER)
        second.leave()
        late = await meeting.enter(1)
        assert await late.ask(Verb.BARRIER) == Words(Verb.OK)
        assert await again.hear() == Words(Verb.OK)

    play(2, scene)


def test_ranks_that_gave_up_meet_anew_with_one_that_is_late() -> None:
    async def scene(meeting: Meeting) -> None:
        gave_up = await meeting.enter(0)
        gave_up.say(Verb.BARRIER)
        assert await gave_up.ask(Verb.MISSING) is not None
        gave_up.leave()
        await asyncio.sleep(0.05)
        first, second = await meeting.enter_all()
        first.say(Verb.BARRIER)
        assert await second.ask(Verb.BARRIER) == Words(Verb.OK)

    play(2, scene)


def test_two_processes_are_not_the_same_rank() -> None:
    async def scene(meeting: Meeting) -> None:
        first = await meeting.enter(0)
        assert await meeting.greet(0) == Words(Verb.LATER)
        assert await meeting.caller.hear() is None
        assert await first.ask(Verb.PUT, key=b"a") == Words(Verb.OK)

    play(2, scene)


@pytest.mark.parametrize(
    ("rank", "size", "secret", "why"),
    [
        (0, 2, "another secret altogether", "the job's secret (RUEDA_SECRET) is another one"),
        (0, 3, SECRET, "rank 0 was told that there are 3 ranks, and the launcher has started 2"),
        (2, 2, SECRET, "there is no rank 2 among 2"),
    ],
)
def test_who_is_none_of_the_ranks_gets_one_answer(
    rank: int, size: int, secret: str, why: str
) -> None:
    async def scene(meeting: Meeting) -> None:
        assert why in said(await meeting.greet(rank, size, secret))
        assert await meeting.caller.hear() is None

    play(2, scene)


@pytest.mark.parametrize(
    "nonsense",
    [
        Words(Verb.GET, key=b"a").frame(),
        Words(Verb.PROVE, value=b"0" * 64).frame(),
        Words(Verb.HELLO, 0, 2, key=b"too short").frame(),
        (MAX_PENDING_FRAME + 1).to_bytes(4, "little") + b"\1\0\0\0",
        b"\x10\0\0\0\2\0\0\0" + bytes(16),
        b"\x10\0\0\0\1\0\0\0" + b"\xff" * 16,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_nonsense_ends_the_connection_and_nothing_else(nonsense: bytes) -> None:
    async def scene(meeting: Meeting) -> None:
        caller = await Caller.at(meeting.address)
        caller.write(nonsense)
        while (words := await caller.hear()) is not None:
            assert words.verb == Verb.ERROR
        (line,) = meeting.said
        assert line.startswith("rendezvous: rejected a connection that ")
        (only,) = await meeting.enter_all()
        only.write(nonsense[:6] + b"\xff" * 40)
        while await only.hear() is not None:
            pass

    play(1, scene)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "ended before it proved that it knows the job's secret"),
        ([Words(Verb.GET, key=b"a")], "sent an invalid message"),
        ([Words(Verb.HELLO, 0, 1, key=fresh_word())] * 2, "sent an invalid message"),
        ([Words(Verb.HELLO, 0, 1, key=b"word")], "runs another version of Rueda"),
        (
            [Words(Verb.HELLO, 0, 1, key=fresh_word()), Words(Verb.PROVE, value=b"?")],
            "does not know the job's secret",
        ),
        (
            [Words(Verb.HELLO, 0, 1, key=fresh_word())],
            "ended before it proved that it knows the job's secret",
        ),
    ],
    ids=["silent", "no hello", "two hellos", "another version", "another secret", "no proof"],
)
def test_who_is_rejected_is_said(words: list[Words], why: str) -> None:
    async def scene(meeting: Meeting) -> None:
        caller = await Caller.at(meeting.address)
        for each in words:
            caller.write(each.frame())
            assert await caller.hear() is not None
        caller.leave()
        async with asyncio.timeout(WITHIN):
            while not meeting.said:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert meeting.said == [f"rendezvous: rejected a connection that {why}"]

    play(1, scene)


def test_no_rank_is_said_to_be_rejected() -> None:
    async def scene(meeting: Meeting) -> None:
        first, second = await meeting.enter_all()
        first.say(Verb.BARRIER)
        assert await second.ask(Verb.BARRIER) == Words(Verb.OK)
        assert await meeting.greet(0) is not None  # into the next world
        assert await meeting.greet(0) == Words(Verb.LATER)
        assert "started 2" in said(await meeting.greet(0, size=3))
        first.leave()
        second.leave()
        meeting.caller.leave()
        only = await meeting.enter(1)
        only.write(b"\xff" * 40)
        assert await only.hear() is None

        await Caller.at(meeting.address)  # still connected when the store closes
        while len(meeting.store._pending) < 1:
            await asyncio.sleep(0.01)
        meeting.store.close()
        assert meeting.said == []

    play(2, scene)


def test_of_many_who_say_nothing_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "_PAUSE", 0.0)

    async def scene(meeting: Meeting) -> None:
        silent = [await Caller.at(meeting.address) for _ in range(100)]
        only = await meeting.enter(0)
        assert await silent[0].hear() is None
        line = "rendezvous: rejected a connection that had to make room for others"
        assert meeting.said == [line] * (100 + 1 - MAX_PENDING - 1)
        assert await only.ask(Verb.BARRIER) == Words(Verb.OK)

    play(1, scene)


def test_who_has_said_nothing_for_a_while_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HANDSHAKE", 0.05)

    async def scene(meeting: Meeting) -> None:
        silent = await Caller.at(meeting.address)
        assert await silent.hear() is None
        half = await Caller.at(meeting.address)
        half.write(Words(Verb.HELLO, 0, 1, key=fresh_word()).frame()[:6])
        assert await half.hear() is None
        assert meeting.said[0] == "rendezvous: rejected a connection that said nothing for too long"

    play(1, scene)


def test_where_no_descriptor_is_left_the_oldest_who_says_nothing_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strangers, "BACK_OFF", 0.01)
    accept, refusals = socket.socket.accept, 0

    def accept_or_refuse(listener: socket.socket) -> tuple[socket.socket, object]:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_or_refuse)

    async def scene(meeting: Meeting) -> None:
        nonlocal refusals
        silent = [await Caller.at(meeting.address) for _ in range(3)]
        first = await meeting.enter(0)
        refusals = 2
        second = await meeting.enter(1)
        assert refusals == 0
        assert await silent[0].hear() is None
        assert await silent[1].hear() is None
        silent[2].say(Verb.GET, key=b"a")  # who is still connected gets an answer
        assert said(await silent[2].hear())
        first.say(Verb.BARRIER)
        assert await second.ask(Verb.BARRIER) == Words(Verb.OK)

    play(2, scene)


def test_words_in_pieces_are_put_together() -> None:
    frame = Words(Verb.PUT, 1, 2, b"key", b"value").frame()
    buffer = bytearray()
    for byte in frame[:-1]:
        buffer.append(byte)
        assert Words.take_from(buffer, MAX_FRAME) is None
    buffer.append(frame[-1])
    assert Words.take_from(buffer, MAX_FRAME) == Words(Verb.PUT, 1, 2, b"key", b"value")
    assert not buffer
    with pytest.raises(Nonsense):
        Words.take_from(bytearray(frame), 4)
