"""The door for launchers' connections: strangers neither block others nor busy the launcher."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from typing import Any

import pytest
from rueda.launcher import strangers
from rueda.launcher.nodes.doorkeeper import Doorkeeper
from rueda.launcher.nodes.greeting import Other, key_of
from rueda.launcher.strangers import MAX_PENDING

KEY = key_of("the secret of a job", ())


class Taken:
    """A door and the connections it has accepted."""

    def __init__(self, expected: int = 0) -> None:
        self.facts: list[dict[str, Any]] = []
        self.said: list[str] = []
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = listener.getsockname()
        self.door = Doorkeeper(
            listener, KEY, lambda _: "", self._take, self.said.append, expected=expected
        )
        self.door.open()

    def _take(self, facts: dict[str, Any], link: socket.socket) -> None:
        self.facts.append(facts)
        link.close()


async def connect(address: tuple[str, int]) -> socket.socket:
    link = socket.socket()
    link.setblocking(False)
    await asyncio.get_running_loop().sock_connect(link, address)
    return link


async def read_line(link: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = await asyncio.get_running_loop().sock_recv(link, 1)
        assert piece, "the door has closed the connection"
        line += piece
    return line


async def greet(link: socket.socket, rank: int) -> str:
    """Greets like a launcher that knows the secret; returns why it is refused, or ""."""
    loop = asyncio.get_running_loop()
    other = Other(KEY)
    await loop.sock_sendall(link, other.hello())
    await loop.sock_sendall(link, other.prove(await read_line(link), {"rank": rank}))
    return other.refusal(await read_line(link))


def test_silent_strangers_make_room() -> None:
    async def meet() -> None:
        taken = Taken()
        strangers = [await connect(taken.address) for _ in range(MAX_PENDING + 8)]
        with await connect(taken.address) as link:
            assert await asyncio.wait_for(greet(link, 1), 60) == ""
        assert taken.facts == [{"rank": 1}]
        # The oldest connections are gone, the youngest are still served.
        assert (
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(strangers[0], 1), 60) == b""
        )
        assert await asyncio.wait_for(greet(strangers[-1], 2), 60) == ""
        assert taken.said[0] == (
            "rejected a connection from 127.0.0.1 that had to make room for others"
        )
        taken.door.close()
        for stranger in strangers:
            stranger.close()

    asyncio.run(meet())


def test_those_who_are_expected_may_come_at_once() -> None:
    async def meet() -> None:
        count = MAX_PENDING + 40
        taken = Taken(expected=40)
        links = [await connect(taken.address) for _ in range(count)]
        answers = await asyncio.wait_for(
            asyncio.gather(*(greet(link, rank) for rank, link in enumerate(links))), 60
        )
        assert answers == [""] * count
        assert len(taken.facts) == count
        taken.door.close()
        for link in links:
            link.close()

    asyncio.run(meet())


def test_without_descriptors_the_door_waits_and_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def meet() -> None:
        taken = Taken()
        link = socket.socket()
        link.setblocking(False)
        calls = 0
        accept = socket.socket.accept

        def counted(listener: socket.socket) -> tuple[socket.socket, Any]:
            nonlocal calls
            calls += 1
            return accept(listener)

        monkeypatch.setattr(socket.socket, "accept", counted)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            before = time.monotonic()
            await asyncio.get_running_loop().sock_connect(link, taken.address)
            await asyncio.sleep(0.5)
            waited = time.monotonic() - before
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert 1 <= calls <= waited / 0.1 + 1
        assert taken.said[0].startswith("cannot accept connections for now: ")
        assert await asyncio.wait_for(greet(link, 3), 60) == ""
        taken.door.close()
        link.close()

    asyncio.run(meet())


def test_who_does_not_know_the_secret_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def come(taken: Taken, *lines: bytes) -> None:
        """Connects, sends the lines, and waits until the door closes the connection."""
        loop = asyncio.get_running_loop()
        with await connect(taken.address) as link:
            for line in lines:
                await loop.sock_sendall(link, line)
            with contextlib.suppress(ConnectionResetError):  # the door did not read everything
                while await asyncio.wait_for(loop.sock_recv(link, 4096), 60):
                    pass

    async def meet() -> None:
        taken = Taken()
        monkeypatch.setattr(strangers, "_PAUSE", 1e9)
        other = Other(key_of("another secret", ()))
        await come(taken, b"GET /\n")
        await come(taken, other.hello(), b"{}\n")
        await come(taken, b"?" * 10_000)
        line = "rejected a connection from 127.0.0.1 that does not know the job's secret (RUEDA_SECRET)"
        assert taken.said == [line]
        monkeypatch.setattr(strangers, "_PAUSE", 0.0)
        await come(taken, b"GET /\n")
        assert taken.said == [line, f"{line} (2 more like this before)"]
        taken.door.close()

    asyncio.run(meet())
