"""Which signals count."""

from __future__ import annotations

import signal

from rueda.launcher.interruptions import Interruptions, Repetitions


def test_what_one_process_sends_twice_at_once_is_one_signal() -> None:
    repetitions = Repetitions()
    assert repetitions.is_new(signal.SIGTERM, 7, 100.0)
    assert not repetitions.is_new(signal.SIGTERM, 7, 100.1)
    assert repetitions.is_new(signal.SIGTERM, 8, 100.2), "somebody else"
    assert repetitions.is_new(signal.SIGINT, 7, 100.2), "another signal"
    assert repetitions.is_new(signal.SIGTERM, 7, 101.0), "again"
    terminal = 0
    assert repetitions.is_new(signal.SIGINT, terminal, 100.0)
    assert repetitions.is_new(signal.SIGINT, terminal, 100.0), (
        "whoever presses a key twice means it"
    )


def test_what_comes_by_two_ways_is_one_signal() -> None:
    interruptions = Interruptions()
    assert interruptions.is_new("direct")
    assert not interruptions.is_new("relayed")
    assert interruptions.is_new("relayed")
    assert not interruptions.is_new("direct")
