"""A job on several hosts, tested without hosts."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rueda.launcher.elastic.discovery import Elastic
from rueda.launcher.elastic.growth import Limits
from rueda.launcher.elastic.hosts_run import ElasticHostsRun
from rueda.launcher.failure import Failure
from rueda.launcher.hosts import Host
from rueda.launcher.job import Job
from rueda.launcher.output import RankOutput
from rueda.launcher.remote.address import machine_identity
from rueda.launcher.remote.connection import Connection
from rueda.launcher.remote.reached_at import address_of
from rueda.launcher.remote.run import Reach, RemoteRun


@pytest.mark.parametrize(("least", "is_borne"), [(2, True), (3, False)])
def test_a_rank_that_was_lost_is_not_lost_again_with_its_host(
    least: int, is_borne: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    output = RankOutput(4, None, False)
    monkeypatch.setattr(output, "say", lines.append)
    settings = {"RUEDA_RECOVERY": "on", "RUEDA_MIN_NP": str(least)}
    job = Job(4, ("true",), (Host("a", 2), Host("b", 2)), settings)
    run = RemoteRun(job, Reach("ssh", 1.0, 1.0), output, 1.0, -1)
    lost = SimpleNamespace(name="b", title="b", share=run._shares[1], lost="silent", is_over=True)
    supervisor = SimpleNamespace(ending=False, end_after_moment=lambda _: None)
    run._started = True
    run._connections = [cast(Any, lost)]
    run._note_gone(3)
    assert run._losses.bears(Failure(3, -9, "b"))
    run._lose(cast(Any, supervisor), cast(Any, lost))
    assert (not run._lost) is is_borne
    assert lines == (
        ["rank 2 on b is lost, its host is gone: silent; the other ranks go on"] * is_borne
    )


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A name server that answers only once the event is set, or fails after 10 s."""
    answers = threading.Event()

    def look_up(*_: object, **__: object) -> list[object]:
        answers.wait(10)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield answers
    answers.set()


def test_a_host_whose_name_is_not_found_stops_nothing_else(name_server: threading.Event) -> None:
    """During the look-up, other hosts must hear from the launcher."""
    job = Job(1, ("true",), (Host("a", 1),), {"RUEDA_RECOVERY": "on"})
    elastic = Elastic(Limits(1, 2), "./hosts.sh", None, 1.0)
    reach, output = Reach("no-such-agent", 1.0, 1.0), RankOutput(1, None, False)
    run = ElasticHostsRun(job, elastic, reach, output, 1.0, -1)
    run._growth.set_slots({"a": 1, "ghost": 1})
    run._handlers = (lambda *_: None,) * 4

    def spawn(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    supervisor = SimpleNamespace(ending=False, spawn=spawn)

    async def fetch() -> bool:
        task = asyncio.ensure_future(run._fetch(cast(Any, supervisor), "ghost"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        was_waiting = not (task.done() or name_server.is_set())
        name_server.set()
        await task
        return was_waiting

    assert asyncio.run(fetch())


def test_a_signal_ends_the_look_for_the_names_of_hosts(name_server: threading.Event) -> None:
    job = Job(2, ("true",), (Host("a", 1), Host("b", 1)))
    run = RemoteRun(job, Reach("no-such-agent", 1.0, 1.0), RankOutput(2, None, False), 1.0, -1)
    has_waited = asyncio.Event()

    async def wait() -> None:
        has_waited.set()

    supervisor = SimpleNamespace(ending=False, start_writer=lambda _: None, wait=wait)

    async def begin() -> None:
        task = asyncio.ensure_future(run._run_ranks(cast(Any, supervisor)))
        await asyncio.sleep(0.05)
        assert not task.done()
        supervisor.ending = True
        await task

    asyncio.run(begin())
    assert has_waited.is_set()
    assert not name_server.is_set()
    assert not run._connections


def run_on(*hosts: Host, elastic: Elastic | None) -> RemoteRun:
    """A job of 4 ranks that has not begun, whose ranks share the cores of their hosts."""
    job = Job(4, ("true",), hosts, chosen=frozenset({"OMP_NUM_THREADS"}))
    reach, output = Reach("ssh", 1.0, 1.0), RankOutput(4, None, False)
    if elastic is None:
        return RemoteRun(job, reach, output, 1.0, -1)
    return ElasticHostsRun(job, elastic, reach, output, 1.0, -1)


@pytest.mark.parametrize(
    ("elastic", "shared"), [(None, [3, 1, 3]), (Elastic(Limits(1, 8), None, None, 1.0), [5, 1, 5])]
)
def test_the_ranks_of_a_machine_with_two_names_share_its_cores(
    elastic: Elastic | None, shared: list[int]
) -> None:
    run = run_on(Host("a", 2), Host("b", 1), Host("also-a", 3), elastic=elastic)
    run._machines = {"a": "m1", "b": "m2", "also-a": "m1"}
    parts = [run._part(share, "") for share in run._shares]
    assert [part.cores_for for part in parts] == shared
    names = [each["RUEDA_LOCAL_RANK"] for part in parts for each in part.identities]
    assert names == ["0", "1", "0", "2"]


HERE = {"machine": machine_identity()}
THERE = {"machine": "another"}
SSH_TO_ITSELF = {"launcher_address": "127.0.0.1", "own_address": "127.0.1.1"}
SSH_TO_B = {"launcher_address": "10.0.0.1", "own_address": "10.0.0.2"}
# The user has logged in to the launcher's host from elsewhere.
LOGIN = {"launcher_address": "192.0.2.1", "own_address": "192.0.2.2"}


@pytest.mark.parametrize(
    ("facts", "named", "addresses"),
    [
        ({"a": HERE | SSH_TO_ITSELF, "b": THERE | SSH_TO_B}, {}, ["10.0.0.1", "10.0.0.2"]),
        ({"b": THERE | SSH_TO_B, "a": HERE | SSH_TO_ITSELF}, {}, ["10.0.0.2", "10.0.0.1"]),
        ({"localhost": HERE | LOGIN, "b": THERE | SSH_TO_B}, {}, ["10.0.0.1", "10.0.0.2"]),
        (
            {"localhost": HERE | LOGIN, "a": HERE | SSH_TO_ITSELF, "b": THERE | SSH_TO_B},
            {},
            ["10.0.0.1", "10.0.0.1", "10.0.0.2"],
        ),
        # The user's choice of a name comes first.
        (
            {"a": HERE | SSH_TO_ITSELF, "b": THERE | SSH_TO_B},
            {"a": "10.1.0.1", "b": None},
            ["10.1.0.1", "10.0.0.2"],
        ),
        # Another host whose daemon sees a connection from its own host, as behind a gateway.
        ({"localhost": HERE, "b": THERE | SSH_TO_ITSELF}, {}, ["", ""]),
        # No other host.
        ({"a": HERE | SSH_TO_ITSELF}, {}, ["127.0.1.1"]),
        ({"b": THERE | SSH_TO_ITSELF}, {}, ["127.0.1.1"]),
        ({"b": SSH_TO_ITSELF}, {}, ["127.0.1.1"]),
        ({"localhost": HERE | LOGIN, "a": HERE | SSH_TO_ITSELF}, {}, ["127.0.0.1", "127.0.1.1"]),
        # What cannot be known is not taken for the same.
        ({"a": SSH_TO_ITSELF, "b": SSH_TO_ITSELF}, {}, ["", ""]),
    ],
)
def test_the_address_at_which_the_others_reach_a_host(
    facts: dict[str, dict[str, str]], named: dict[str, str | None], addresses: list[str]
) -> None:
    hosts = [Host(name, 1) for name in facts]
    connections = [connection_to(host, facts[host.name]) for host in hosts]
    assert [address_of(each, connections, hosts, named) for each in connections] == addresses


def connection_to(host: Host, facts: dict[str, str]) -> Connection:
    share = SimpleNamespace(host=host)
    return cast(Connection, SimpleNamespace(name=host.name, share=share, facts=facts))


@pytest.mark.parametrize(("later", "address"), [([], "127.0.1.1"), ([Host("b", 1)], "")])
def test_hosts_that_may_join_need_another_address_than_the_loopback(
    later: list[Host], address: str
) -> None:
    run = run_on(Host("a", 4), *later, elastic=Elastic(Limits(1, 8), None, None, 1.0))
    run._connections = [connection_to(Host("a", 4), HERE | SSH_TO_ITSELF)]
    run._machines = {"a": HERE["machine"]}
    assert run._address_of(run._connections[0]) == address
