from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.hosts import Host
from rueda.launcher.placement import HostShare
from rueda.launcher.remote.connection import Connection
from rueda.launcher.remote.frames import (
    Frame,
    FrameReader,
    HelloReader,
    Kind,
    NotOurs,
    hello,
    pack,
    pack_json,
)

frames = st.lists(
    st.builds(Frame, st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary(max_size=300))
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cuts `data` into pieces."""
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@given(frames, st.lists(st.integers(0, 4000)))
def test_what_is_sent_comes_however_it_is_cut(sent: list[Frame], places: list[int]) -> None:
    data = b"".join(pack(frame.kind, frame.payload, frame.rank) for frame in sent)
    reader = FrameReader()
    assert [frame for piece in cut(data, places) for frame in reader.feed(piece)] == sent


@given(st.binary(min_size=9, max_size=500))
def test_garbage_is_refused_or_waits_for_more(data: bytes) -> None:
    reader = FrameReader()
    try:
        found = reader.feed(data)
    except NotOurs:
        return
    assert sum(9 + len(frame.payload) for frame in found) <= len(data)


def test_a_length_beyond_all_reason_is_refused_at_once() -> None:
    with pytest.raises(NotOurs):
        FrameReader().feed(Kind.OUT.value + b"\0" * 4 + b"\xff" * 4)


def test_json_travels() -> None:
    value = {"name": "ä\n", "list": [1, {"a": None}]}
    (frame,) = FrameReader().feed(pack_json(Kind.JOB, value))
    assert frame.json() == value
    with pytest.raises(ValueError, match="not an object"):
        Frame(Kind.JOB, 0, b"[]").json()


@given(
    st.binary(max_size=100).filter(lambda text: b"rueda-host" not in text),
    st.binary(max_size=100),
    st.lists(st.integers(0, 300)),
)
def test_hello_is_found_behind_what_a_login_script_prints(
    before: bytes, after: bytes, places: list[int]
) -> None:
    facts = {"version": "1.2.3", "host": "h1"}
    reader = HelloReader()
    for piece in cut(before + hello(facts) + after, places):
        reader.feed(piece)
    assert (reader.facts, reader.before, reader.rest) == (facts, before, after)


@pytest.mark.parametrize("text", [b"rueda-host []\n", b"rueda-host {\n", b"rueda-host \xff\n"])
def test_a_hello_without_facts_has_none(text: bytes) -> None:
    reader = HelloReader()
    assert reader.feed(text)
    assert reader.facts == {}


def test_json_that_is_nested_beyond_all_reason_is_refused() -> None:
    deep = b"[" * 200_000
    with pytest.raises(ValueError, match="nested"):
        Frame(Kind.JOB, 0, deep).json()
    reader = HelloReader()
    assert reader.feed(b"rueda-host " + deep + b"\n")
    assert reader.facts == {}


def test_a_line_without_an_end_costs_little() -> None:
    reader = HelloReader()
    for _ in range(100):
        assert not reader.feed(b"x" * 10_000)
    assert len(reader.rest) + len(reader.before) < 100_000
    assert reader.feed(b"\n" + hello({"host": "h1"}))


class Host1:
    """The launcher's end of a connection to a host with ranks 2 and 3, and what it accepted."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.losses = 0
        self.connection = Connection(
            HostShare(Host("h1", 2), 2, 2),
            ["ssh"],
            lambda _, frame: self.frames.append(frame),
            lambda *_: None,
            lambda _: self._lose(),
            lambda: None,
        )

    def _lose(self) -> None:
        self.losses += 1

    def hear(self, data: bytes) -> None:
        self.connection._take("stdout", data)


json_texts = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
)
said_by_a_host = st.lists(
    st.builds(
        lambda kind, rank, payload: pack(kind, payload, rank),
        st.sampled_from(Kind),
        st.sampled_from([0, 2, 3, 4, 2**32 - 1]),
        st.binary(max_size=40) | json_texts.map(lambda value: json.dumps(value).encode()),
    )
    | st.binary(max_size=30),
    max_size=8,
)


@given(said_by_a_host, st.lists(st.integers(0, 400)))
def test_whatever_a_host_says_it_speaks_for_its_own_ranks(
    said: list[bytes], places: list[int]
) -> None:
    host = Host1()
    host.hear(hello({"version": "1"}))
    for piece in cut(b"".join(said), places):
        host.hear(piece)
    of_ranks = [f for f in host.frames if f.kind in (Kind.OUT, Kind.ERR, Kind.EXIT)]
    assert all(frame.rank in (2, 3) for frame in of_ranks)
    assert host.losses <= 1


@pytest.mark.parametrize("kind", [Kind.OUT, Kind.ERR, Kind.EXIT])
def test_a_host_that_speaks_for_ranks_of_another_is_lost(kind: Kind) -> None:
    host = Host1()
    host.hear(hello({"version": "1"}) + pack(kind, b"0", 3))
    assert [frame.rank for frame in host.frames] == [3]
    host.hear(pack(kind, b"0", 1))
    assert len(host.frames) == 1
    assert host.losses == 1


def test_a_host_that_sends_garbage_before_the_start_is_explained() -> None:
    host = Host1()
    host.hear(hello({"version": "1"}) + b"?" * 50)
    assert host.connection.explain_failed_start() == "host 'h1': it has sent an invalid message"


def test_a_host_that_never_says_hello_is_explained() -> None:
    connection = Host1().connection
    connection.lost = connection._why_ended(255)
    assert connection.explain_failed_start() == ("host 'h1' cannot be reached (ssh: exit code 255)")
