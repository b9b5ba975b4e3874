"""The launcher's process on a host, tested without that process."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import cast

import pytest
from rueda.launcher.remote.channel import Channel
from rueda.launcher.remote.frames import Kind, pack
from rueda.launcher.remote.host import HostRun
from rueda.launcher.remote.host_job import HostJob, Prepared
from rueda.launcher.supervisor import Supervisor

JOB = HostJob(["true"], "/", {}, [{"RUEDA_SIZE": "2"}], 1, 1.0, 60.0, "", "", False)


class Interrupted:
    """A supervisor that only records how it is interrupted."""

    ending = False
    interrupted_by = None

    def __init__(self) -> None:
        self.signals: list[signal.Signals] = []

    def interrupt(self, number: signal.Signals) -> None:
        self.signals.append(number)


@pytest.mark.parametrize(
    "said",
    [
        pack(Kind.SIGNAL, b"fifteen 1"),
        pack(Kind.SIGNAL, b"15"),
        pack(Kind.SIGNAL, b"9999 1"),
        pack(Kind.ENDINGS, b"{}"),
        pack(Kind.ENDINGS, b'{"ended": 7}'),
        pack(Kind.ENDINGS, b"[" * 100_000),
        pack(Kind.JOINER, b"[]", 5),
        b"?" * 50,
    ],
    ids=lambda said: str(said[:20]),
)
def test_a_launcher_that_says_nonsense_is_taken_for_gone(said: bytes) -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        with there:
            channel = Channel(there.fileno(), "the launcher", 1.0)
            host = HostRun(JOB, Prepared(("true",), {}, None, ""), {}, channel, -1)
            supervisor = Interrupted()
            with here:  # still open: closing it would have the same effect
                here.sendall(said)
                while not supervisor.signals:
                    host._hear(cast(Supervisor, supervisor))
            assert supervisor.signals == [signal.SIGTERM]

    asyncio.run(run())
