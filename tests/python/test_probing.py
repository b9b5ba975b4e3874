"""Whether a process can open connections to others."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("rueda._native")

from rueda.attendance import Attendance
from rueda.elastic.changes import wanted
from rueda.elastic.probing import Place, unreached
from rueda.launcher_session import Session
from rueda.probe_listener import ProbeListener


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def place(number: int, listener: socket.socket) -> Place:
    host, port = listener.getsockname()
    return Place(number, "there", f"tcp:{host}:{port}")


def test_who_listens_is_reached(listener: socket.socket) -> None:
    assert unreached([place(number, listener) for number in range(3)]) == {}
    assert unreached([]) == {}


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_ipv6() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6")
    with listener:
        there = Place(0, "there", f"tcp:[::1]:{listener.getsockname()[1]}")
        assert unreached([there]) == {}


def test_who_does_not_listen_any_more_is_named(listener: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = place(7, closed)
    why = f"cannot open a connection to process 7 on there at {gone.address}: Connection refused"
    assert unreached([place(1, listener), gone]) == {7: f"{socket.gethostname()} {why}"}


@pytest.mark.parametrize("address", ["tcp:nowhere:1", "tcp:127.0.0.1:x", "unix:@here", ""])
def test_what_is_no_address_cannot_be_reached(address: str) -> None:
    (why,) = unreached([Place(3, "there", address)]).values()
    assert f"process 3 on there at {address}: " in why


def test_who_does_not_answer_is_waited_for_once_for_all() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        there = place(5, full)
        kept = [socket.socket() for _ in range(4)]  # nobody accepts them: the queue is full
        for each in kept:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        begin = time.monotonic()
        why = unreached([there, Place(6, "there", there.address)], 1.0)
        took = time.monotonic() - begin
        for each in kept:
            each.close()
    assert list(why) == [5, 6]
    assert why[5].endswith(f"process 5 on there at {there.address}: no answer within 1 s")
    assert 1.0 <= took < 2.0  # not one after the other


class Told:
    """What a rank has told the launcher."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interface: str = "127.0.0.1") -> None:
        monkeypatch.setattr(
            "rueda.probe_listener._native.options", lambda: {"interface": interface}
        )
        self.probe_listener = ProbeListener()
        self.answers: list[dict[str, Any]] = []
        self.send: Callable[..., None] = lambda **message: self.answers.append(message)

    def hear(self, *probing: int, across_hosts: bool = True) -> list[Any]:
        """The rank hears who is to prove something. Returns what it answers: address and processes."""
        self.answers.clear()
        self.probe_listener.hear(list(probing))
        if self.probe_listener.is_asked:
            self.probe_listener.answer(across_hosts, self.send)
        return [tuple(each["probe_at"].values()) for each in self.answers]


def test_a_rank_listens_as_long_as_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    assert told.hear() == []
    ((address, probing),) = told.hear(4)
    assert probing == [4]
    assert unreached([Place(0, "here", address)]) == {}
    assert told.hear(4) == []
    assert told.hear(4, 5) == [(address, [4, 5])]
    told.probe_listener.ask_again()
    assert told.hear(4, 5) == [(address, [4, 5])]
    assert told.hear() == []
    assert list(unreached([Place(0, "here", address)])) == [0]
    assert len(told.hear(4, 5)) == 1
    told.hear()


def test_a_rank_that_cannot_listen_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Told(monkeypatch).hear(4, across_hosts=False) == [("", [4])]
    assert Told(monkeypatch, "nothing0").hear(4) == [("", [4])]


@pytest.mark.parametrize("idle", [1000.0, 0.0], ids=["looks seldom", "looks often"])
def test_a_rank_that_looks_seldom_waits_for_a_probe(
    monkeypatch: pytest.MonkeyPatch, idle: float
) -> None:
    monkeypatch.setattr("rueda.probe_listener._native.options", lambda: {"interface": "127.0.0.1"})
    own, launcher = socket.socketpair()
    here = Attendance(0, Session(own), rendezvous="tcp:here")
    monkeypatch.setattr("rueda.elastic.changes.attendance", lambda: here)
    launcher.sendall(b'{"probing": [4], "joiners": []}\n')
    answer: dict[str, Any] = {}

    def admit() -> None:
        answer.update(json.loads(launcher.recv(1000))["probe_at"])
        time.sleep(0.2)
        launcher.sendall(b'{"probing": [], "joiners": [4]}\n')

    thread = threading.Thread(target=admit)
    thread.start()
    here.counted_from -= idle
    assert wanted() == (bool(idle), False)
    thread.join()
    assert answer["probing"] == [4]
    assert wanted() == (True, False)
    launcher.close()
    own.close()


def test_a_rank_waits_for_a_probe_once_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rueda.probe_listener._native.options", lambda: {"interface": "127.0.0.1"})
    own, launcher = socket.socketpair()
    with own, launcher:
        here = Attendance(0, Session(own), rendezvous="tcp:here")
        monkeypatch.setattr("rueda.elastic.changes.attendance", lambda: here)
        launcher.sendall(b'{"probing": [4]}\n')
        waited = []
        for _ in range(2):
            here.counted_from -= 30.0
            begin = time.monotonic()
            assert wanted() == (False, False)
            waited.append(time.monotonic() - begin)
        assert 0.3 <= waited[0] < 1.0
        assert waited[1] < 0.3
        here.probe_listener.hear([])
