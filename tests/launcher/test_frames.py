from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    """`data` in pieces."""
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
