"""How a rank uses the launcher's reports on how others have ended."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator

import pytest
from rueda.endings import Ending, Endings


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket at which the launcher listens."""
    address = f"rueda-test-{secrets.token_hex(8)}"
    monkeypatch.setenv("RUEDA_LAUNCHER", f"@{address}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(f"\0{address}")
        listening.listen()
        listening.settimeout(60)
        yield listening


def awaited(endings: Endings, process_id: int) -> Ending | None:
    deadline = time.monotonic() + 60
    while (ending := endings.of("host", process_id)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return ending


def test_what_is_told_sooner_and_later_is_known(launcher: socket.socket) -> None:
    endings = Endings()
    assert endings.of("host", 7) is None
    endings.ask()
    connection, _ = launcher.accept()
    with connection:
        assert json.loads(connection.recv(1000)) == {"endings": True}
        assert endings.of("host", 7) is None
        nonsense = [3, {}, {"host": "host", "pid": "x", "status": 0, "how": ""}]
        killed = {"host": "host", "pid": 7, "status": -9, "how": "killed by SIGKILL (Killed)"}
        connection.sendall(json.dumps({"ended": [*nonsense, killed]}).encode() + b"\n")
        connection.sendall(b'{"ended": 5}\nnot JSON\n')
        assert awaited(endings, 7) == Ending(-9, "killed by SIGKILL (Killed)")
        assert endings.of("other host", 7) is None
        later = {"host": "host", "pid": 8, "status": 3, "how": "exit code 3"}
        connection.sendall(json.dumps({"ended": [later]}).encode() + b"\n")
        assert awaited(endings, 8) == Ending(3, "exit code 3")
        endings.ask()  # a second request is unnecessary
    assert endings.of("host", 7) is not None  # after the launcher has gone


def test_who_has_not_listened_for_long_asks_again(launcher: socket.socket) -> None:
    """The launcher closes the session of a rank that does not read what it is told."""
    endings = Endings()
    endings.ask()
    connection, _ = launcher.accept()
    with connection:
        told = {"host": "host", "pid": 7, "status": 3, "how": "exit code 3"}
        connection.sendall(json.dumps({"ended": [told]}).encode() + b"\n")
    endings.ask()
    again, _ = launcher.accept()
    with again:
        assert json.loads(again.recv(1000)) == {"endings": True}
        assert endings.of("host", 7) == Ending(3, "exit code 3")
        told = {"host": "host", "pid": 8, "status": 4, "how": "exit code 4"}
        again.sendall(json.dumps({"ended": [told]}).encode() + b"\n")
        assert awaited(endings, 8) == Ending(4, "exit code 4")


def test_nobody_waits_for_a_launcher_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUEDA_LAUNCHER", f"@rueda-test-{os.getpid()}-nobody")
    endings = Endings()
    endings.ask()
    assert endings.of("host", 7) is None
