"""Lines of JSON between launcher and ranks: any input is understood or ends the session."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from contextlib import suppress
from typing import Any

import pytest
from rueda.json_objects import read_object
from rueda.launcher.endings import Endings
from rueda.launcher.remote.frames import Frame, Kind
from rueda.launcher.remote.session_relay import SessionRelay
from rueda.launcher.sessions import Session
from rueda.launcher_session import Session as SessionOfRank

DEEP = [b"[" * 30_000, b'{"a":' * 10_000, b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"]
NONSENSE = [*DEEP, b"[]", b"null", b"7", b"\xff\xfe", b'{"a":}', b"", b"9" * 5000]


def test_an_object_of_some_depth_is_understood() -> None:
    assert read_object(b'{"ended": [{"pid": 7}], "text": "[[[["}') == {
        "ended": [{"pid": 7}],
        "text": "[[[[",
    }


@pytest.mark.parametrize("text", NONSENSE, ids=lambda text: str(text[:12]))
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - with whatever words
        read_object(text)


@pytest.mark.parametrize("text", NONSENSE, ids=lambda text: str(text[:12]))
def test_nonsense_ends_a_session_of_the_launcher(text: bytes) -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        heard: list[dict[str, Any]] = []
        ended: list[Session] = []
        good = b'{"ready": 1}\n'
        session = Session(
            there,
            good + text + b"\n" + good,
            lambda _, message: heard.append(message),
            ended.append,
        )
        assert heard == [{"ready": 1}]
        assert ended == [session]
        assert not session.is_open
        assert here.recv(1) == b""
        here.close()

    asyncio.run(run())


def test_a_line_may_name_thousands_of_ranks_and_has_an_end_all_the_same() -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        here.setblocking(False)
        heard: list[dict[str, Any]] = []
        session = Session(there, b"", lambda _, message: heard.append(message), lambda _: None)
        numbers = list(range(60_000))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(here, json.dumps({"formed": {"members": numbers}}).encode() + b"\n")
        while not heard:
            await asyncio.sleep(0.001)
        assert heard == [{"formed": {"members": numbers}}]
        with suppress(ConnectionError):
            await loop.sock_sendall(here, b"x" * 10_000_000)
        assert not session.is_open
        here.close()

    asyncio.run(run())


def test_what_a_host_hands_on_the_launcher_understands() -> None:
    """Otherwise a process could end its host's connection, and all ranks there with it."""

    async def run() -> None:
        said: list[bytes] = []
        relay = SessionRelay(lambda kind, payload, number: said.append(payload), Endings())
        for depth in range(1, 1200):
            here, there = socket.socketpair()
            relay.accept(there, b'{"a":' + b"[" * depth + b"]" * depth + b"}\n")
            here.close()
        handed_on = [payload for payload in said if payload]
        assert handed_on
        for payload in handed_on:
            assert Frame(Kind.SESSION, 1, payload).json()
        relay.close()

    asyncio.run(run())


def test_a_rank_ignores_nonsense_of_its_launcher() -> None:
    name = f"@rueda-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name.replace("@", "\0", 1))
        listener.listen()
        session = SessionOfRank(name, hello=1)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"\n".join([*NONSENSE, b'{"joiners": [2]}', b""]))
            heard: list[dict[str, Any]] = []
            while not heard:
                session.wait(10)
                heard = session.receive()
            assert heard == [{"joiners": [2]}]
            session.close()


def test_a_session_ends_though_a_child_has_a_copy_of_the_connection() -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with here, there.dup():  # as after a fork
            Session(there, b"", lambda *_: None, lambda _: None).close()
            here.settimeout(10)
            assert here.recv(1) == b""

    asyncio.run(run())
