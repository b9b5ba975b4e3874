"""Finding the processes that a program has left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from rueda.launcher import processes


def leader(script: str) -> subprocess.Popen[bytes]:
    """A shell that leads a process group of its own."""
    return subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)


def test_an_empty_group_costs_no_look_at_the_processes_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The survivors of a lost rank need the processor just when the launcher notices its end."""
    with leader("exit 3") as gone:
        gone.wait()
        monkeypatch.setattr(processes, "_parents", lambda: pytest.fail("reads all of /proc"))
        assert processes.members_of(gone.pid, os.getpid()) == set()


@pytest.fixture
def adopting() -> Iterator[None]:
    """This process adopts orphans for as long as the test runs."""
    processes.adopt_orphans()
    yield
    processes._libc.prctl(processes._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.usefixtures("adopting")
def test_who_is_left_in_the_group_of_an_ended_leader_is_found() -> None:
    with leader("sleep 60 & echo $!") as gone:
        assert gone.stdout is not None
        left = int(gone.stdout.readline())
        gone.wait()
        try:
            assert processes.members_of(gone.pid, os.getpid()) == {left}
        finally:
            os.kill(left, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while processes.members_of(gone.pid, os.getpid()) and time.monotonic() < deadline:
            processes.reap({left})
        assert processes.members_of(gone.pid, os.getpid()) == set()
