"""Sessions of ranks on other hosts, relayed over the connection between the hosts."""

from __future__ import annotations

import asyncio
import json
import socket

from rueda.launcher.endings import Endings
from rueda.launcher.failure import Failure
from rueda.launcher.remote.frames import Frame, Kind
from rueda.launcher.remote.session_relay import SessionRelay, speaks_for_others

Said = list[tuple[Kind, bytes, int]]


async def read(end: socket.socket) -> bytes:
    """Returns what has arrived, once something has."""
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(end, 1 << 16), 10)


async def until_said(said: Said, count: int) -> None:
    deadline = asyncio.get_running_loop().time() + 10
    while len(said) < count:
        assert asyncio.get_running_loop().time() < deadline, said
        await asyncio.sleep(0.001)


def open_session(relay: SessionRelay, begin: bytes) -> socket.socket:
    """Returns a rank's end of a new session."""
    here, there = socket.socketpair()
    here.setblocking(False)
    relay.accept(there, begin)
    return here


def test_what_ranks_and_launcher_say_goes_both_ways_to_the_right_one() -> None:
    async def run() -> None:
        said: Said = []
        relay = SessionRelay(
            lambda kind, payload, number: said.append((kind, payload, number)), Endings()
        )
        first = open_session(relay, b'{"hello": 4}\n')
        second = open_session(relay, b'{"he')  # the rest arrives later
        second.send(b'llo": 5}\n{"ready": 5}\n')
        await until_said(said, 3)
        assert {kind for kind, _, _ in said} == {Kind.SESSION}
        assert [(json.loads(text), key) for _, text, key in said] == [
            ({"hello": 4}, 1),
            ({"hello": 5}, 2),
            ({"ready": 5}, 2),
        ]
        relay.take(Frame(Kind.SESSION, 2, b'{"joiners": [5]}'))
        assert json.loads(await read(second)) == {"joiners": [5]}
        relay.take(Frame(Kind.SESSION, 1, b""))
        assert await read(first) == b""
        assert said[3:] == [(Kind.SESSION, b"", 1)]
        relay.take(Frame(Kind.SESSION, 1, b'{"joiners": []}'))  # was already on its way
        second.close()
        await until_said(said, 5)
        assert said[4:] == [(Kind.SESSION, b"", 2)]
        first.close()

    asyncio.run(run())


def test_nonsense_ends_a_session_and_the_end_of_the_job_all() -> None:
    async def run() -> None:
        said: Said = []
        relay = SessionRelay(
            lambda kind, payload, number: said.append((kind, payload, number)), Endings()
        )
        bad, good = open_session(relay, b"{what\n"), open_session(relay, b'{"hello": 1}\n')
        assert await read(bad) == b""
        assert said == [(Kind.SESSION, b"", 1), (Kind.SESSION, b'{"hello": 1}', 2)]
        relay.close()
        assert await read(good) == b""
        bad.close()
        good.close()

    asyncio.run(run())


def test_endings_are_told_on_the_host_which_asks_the_launcher_once() -> None:
    async def run() -> None:
        said: Said = []
        asked: list[int] = []
        endings = Endings(lambda: asked.append(1))
        relay = SessionRelay(
            lambda kind, payload, number: said.append((kind, payload, number)), endings
        )
        first = {"host": "h1", "pid": 7, "status": 3, "how": "exit code 3"}
        endings.note(7, Failure(2, 3, "h1"))
        assert not asked
        one = open_session(relay, b'{"endings": true}\n')
        two = open_session(relay, b'{"endings": true}\n')
        for end in (one, two):
            assert json.loads(await read(end)) == {"ended": [first]}
        assert asked == [1]
        second = {"host": "h0", "pid": 8, "status": -9, "how": "killed by SIGKILL (Killed)"}
        endings.learn([first, second])  # the launcher reports for all hosts
        for end in (one, two):
            assert json.loads(await read(end)) == {"ended": [second]}
        one.close()
        two.close()
        await until_said(said, 2)
        assert said == [(Kind.SESSION, b"", 1), (Kind.SESSION, b"", 2)]

    asyncio.run(run())


def test_a_host_speaks_for_its_own_processes_only() -> None:
    assert not speaks_for_others({"hello": 2}, [2, 5])
    assert not speaks_for_others({"formed": {"members": [0, 1]}}, [2])
    assert speaks_for_others({"hello": 1}, [2, 5])
    assert speaks_for_others({"ready": "5"}, [2, 5])
