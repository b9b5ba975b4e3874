"""Code that the modules for other engines share, without any engine."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rueda.engines.network import options_at
from rueda.engines.ranks import failed_by_itself, in_order_of_hosts, noted
from rueda.engines.versions import Needs
from rueda.errors import InitializationError, PeerLostError, ShutdownError

OPEN = Needs("rueda.some", "Some", "some", (2, 16), "pip install 'some>=2.16'")
CLOSED = Needs("rueda.some", "Some", "some", (2, 16), "pip install 'some>=2.16,<4'", below=4)
ONE = Needs("rueda.some", "Some", "some", (3,), "pip install 'some>=3,<4'", below=4)


@pytest.mark.parametrize(
    ("needs", "version", "wanted"),
    [
        (OPEN, "2.15.9", "2.16 or newer"),
        (OPEN, "unknown", "2.16 or newer"),
        (CLOSED, "4.0.0rc1", "2.16 or newer, below 4,"),
        (CLOSED, "2.3", "2.16 or newer, below 4,"),
        (ONE, "2.99", "3"),
        (ONE, "4", "3"),
    ],
)
def test_a_version_that_cannot_be_used_is_told(needs: Needs, version: str, wanted: str) -> None:
    with pytest.raises(ImportError) as raised:
        needs.check(version)
    assert raised.value.name == "some"
    assert str(raised.value) == (
        f"rueda.some needs Some {wanted}, but Some {version} is installed: {needs.install}"
    )


@given(st.integers(0, 9), st.integers(0, 99), st.sampled_from(["", ".1", "rc1", ".dev0+local"]))
def test_versions_compare_as_numbers(major: int, minor: int, rest: str) -> None:
    usable = (2, 16) <= (major, minor) < (4, 0)
    try:
        CLOSED.check(f"{major}.{minor}{rest}")
    except ImportError:
        assert not usable
    else:
        assert usable


@given(st.lists(st.sampled_from("abc"), max_size=9))
def test_ranks_of_a_host_follow_each_other(hosts: list[str]) -> None:
    order = in_order_of_hosts(hosts)
    assert sorted(order) == list(range(len(hosts)))
    placed = [hosts[task] for task in order]
    assert placed == sorted(hosts)
    for host in set(hosts):
        tasks = [task for task in order if hosts[task] == host]
        assert tasks == sorted(tasks)


def test_ranks_are_reached_where_the_engine_reaches_their_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RUEDA_INTERFACE", "HOROVOD_GLOO_IFACE"):
        monkeypatch.delenv(name, raising=False)
    for elsewhere in ("127.0.0.1", "::1", "localhost", "203.0.113.7", "no-such-host.invalid", ""):
        assert options_at(elsewhere) == {}

    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        return [(*kind, ("127.0.0.2", 0)), (*kind, ("203.0.113.7", 0)), (*kind, ("0.0.0.0", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert options_at("here") == {"interface": "0.0.0.0"}  # the one that can be bound
    monkeypatch.setenv("RUEDA_INTERFACE", "eth7")
    assert options_at("here") == {}


def test_whose_error_counts() -> None:
    told, left = PeerLostError("rank 2 has failed", 2), ShutdownError("rank 2 has shut down")
    own = ValueError("a bad row")
    assert failed_by_itself({0: told, 1: left, 3: KeyError("x"), 2: own}) == 2
    assert failed_by_itself({0: told, 1: left}) is None
    echo = ShutdownError("rank 0 has shut down", 0)
    first = ShutdownError("rank 3 has shut down", 3)  # rank 3 has returned
    assert failed_by_itself({0: first, 1: echo}) == 0
    assert failed_by_itself({0: ShutdownError("rank 1 has shut down", 1), 1: first}) == 1
    assert failed_by_itself({0: left, 1: own}) == 1
    assert failed_by_itself({}) is None
    closed = InitializationError("rank 2 has failed", reason="rendezvous_closed")
    alone = InitializationError("rank 0 left while the world was formed")
    bad = InitializationError("RUEDA_FUSION_THRESHOLD is no size")
    assert failed_by_itself({2: bad, 0: closed, 1: alone}) == 2
    assert failed_by_itself({0: closed, 1: alone, 3: own}) == 3
    assert failed_by_itself({0: closed}) is None
    assert noted(own, "rank 2") is own
