from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rueda.launcher.errors import LaunchError
from rueda.launcher.hosts import Host, format_hosts, parse_hostfile, parse_hosts, total_slots

names = st.from_regex(r"[a-z0-9_][a-z0-9_.\-]{0,20}|\[[0-9a-f:]{2,20}\]", fullmatch=True)
hosts = st.lists(
    st.builds(Host, names, st.integers(1, 10_000)),
    min_size=1,
    max_size=8,
    unique_by=lambda h: h.name,
)


@given(hosts)
def test_format_then_parse_gives_the_same_hosts(given_hosts: list[Host]) -> None:
    assert parse_hosts(format_hosts(given_hosts)) == tuple(given_hosts)


@given(
    hosts,
    st.sampled_from(
        ["{} slots={}", "{}:{}", "  {}   slots = {}  # fast", "{} slots={} max_slots=99"]
    ),
)
def test_hostfile_formats_mean_the_same(
    tmp_path_factory: pytest.TempPathFactory, given_hosts: list[Host], form: str
) -> None:
    file = tmp_path_factory.mktemp("hosts") / "hostfile"
    lines = ["# a comment", "", *(form.format(host.name, host.slots) for host in given_hosts)]
    file.write_text("\n".join(lines))
    assert parse_hostfile(file) == tuple(given_hosts)


@given(hosts)
def test_a_host_named_twice_has_the_slots_of_both(given_hosts: list[Host]) -> None:
    twice = parse_hosts(format_hosts(given_hosts + given_hosts))
    assert total_slots(twice) == 2 * total_slots(given_hosts)
    assert len(twice) == len(given_hosts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node1", "node1.* has no number of slots"),
        ("node1:", "node1.* has no number of slots"),
        ("node1:0", "node1.* has 0 slots"),
        ("node1:two", "node1:two.* is not a host"),
        ("a:1,b c:1", "b c:1"),
        ("", "names no host"),
        (",", "names no host"),
        ("joe@node1:2", "'joe@node1:2' names a user.* --ssh 'ssh -l joe'"),
        ("@node1:2", "'@node1:2' is not a host"),
    ],
)
def test_bad_hosts(text: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        parse_hosts(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node1", "line 1: host 'node1' has no number of slots"),
        ("a slots=1\nb slots=0", "line 2: host 'b' has 0 slots"),
        ("a slots=1\nb slots=many", "line 2: 'b slots=many' is not understood"),
        ("# nothing", "names no host"),
        ("joe@node1 slots=2", "line 1: 'joe@node1 slots=2' names a user.* --ssh 'ssh -l joe'"),
    ],
)
def test_bad_hostfile(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(LaunchError, match=words):
        parse_hostfile(tmp_path / "hosts")


def test_a_name_is_no_longer_than_names_can_be_and_a_message_does_not_quote_more() -> None:
    assert parse_hosts("x" * 253 + ":2") == (Host("x" * 253, 2),)
    with pytest.raises(LaunchError) as caught:
        parse_hosts("x" * 254 + ":2")
    assert str(caught.value) == f"-H: '{'x' * 254}:2' is not a host; write 'name:slots'"
    with pytest.raises(LaunchError) as caught:
        parse_hosts("x" * 900_000)
    assert str(caught.value) == f"-H: '{'x' * 300}...' is not a host; write 'name:slots'"
    with pytest.raises(LaunchError) as caught:
        parse_hosts("x" * 900_000 + "@node")
    assert len(str(caught.value)) < 1000


def test_a_hostfile_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node1 slots=2\n", encoding="utf-8-sig")
    assert parse_hostfile(tmp_path / "hosts") == (Host("node1", 2),)


def test_missing_hostfile(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="No such file"):
        parse_hostfile(tmp_path / "hosts")
