from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from rueda.launcher.processes import children

from .conftest import LAUNCHER, has_ended, launcher_environment

pytestmark = pytest.mark.usefixtures("no_survivors")
Script = Callable[[str], str]


@contextmanager
def running(
    tmp_path: Path, arguments: list[str], ranks: int, before: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """The launcher, led by the words `before`, once all its ranks have started."""
    process = subprocess.Popen(
        [*before, *LAUNCHER, *arguments, "-np", str(ranks), "python3", "program.py"],
        env=launcher_environment(),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 30
        while len(list(tmp_path.glob("ready.*"))) < ranks:
            assert time.monotonic() < deadline, "the ranks did not start"
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_signal_to_the_launcher_ends_the_job(
    tmp_path: Path, any_launch: list[str], script: Script, number: signal.Signals
) -> None:
    script("""
        pathlib.Path(f"ready.{rank}").touch()
        time.sleep(100)
    """)
    with running(tmp_path, any_launch, 2) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert err.rstrip().endswith(f"rueda: ended by {number.name}; all ranks are gone")


def test_stubborn_ranks_are_killed(tmp_path: Path, launch: list[str], script: Script) -> None:
    script("""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        pathlib.Path(f"ready.{rank}").touch()
        time.sleep(100)
    """)
    with running(tmp_path, launch, 2) as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


def test_built_in_ranks_see_the_interrupt(tmp_path: Path, script: Script) -> None:
    script("""
        try:
            pathlib.Path(f"ready.{rank}").touch()
            time.sleep(100)
        except KeyboardInterrupt:
            print("saved", flush=True)
    """)
    with running(tmp_path, ["run", "--no-mpi"], 2) as process:
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert sorted(out.splitlines()) == ["[0]<stdout>: saved", "[1]<stdout>: saved"]
    assert process.returncode == 130


def test_ranks_die_with_a_killed_launcher(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script("""
        pathlib.Path(f"ready.{rank}").touch()
        time.sleep(100)
    """)
    with running(tmp_path, launch, 2) as process:
        process.kill()
        process.communicate(timeout=30)
    deadline = time.monotonic() + 20
    pids = [int(file.read_text()) for file in tmp_path.glob("pid.*")]
    while not all(has_ended(pid) for pid in pids):
        assert time.monotonic() < deadline, "ranks outlive the launcher"
        time.sleep(0.05)


WITH_GRANDCHILDREN = """
    for signals in ((), (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)):
        stubborn = [f"trap '' {number.value};" for number in signals]
        child = subprocess.Popen(
            ["sh", "-c", " ".join([*stubborn, "while :; do sleep 0.2; done"])],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        pathlib.Path(f"pid.child{rank}.{len(signals)}").write_text(str(child.pid))
    pathlib.Path(f"ready.{rank}").touch()
    time.sleep(100)
"""


def wait_until_gone(tmp_path: Path) -> None:
    deadline = time.monotonic() + 30
    pids = {file.name: int(file.read_text()) for file in tmp_path.glob("pid.*")}
    while left := [name for name, pid in pids.items() if not has_ended(pid)]:
        assert time.monotonic() < deadline, f"{left} outlive the launcher"
        time.sleep(0.05)


def test_no_process_of_the_ranks_outlives_a_killed_launcher(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script(WITH_GRANDCHILDREN)
    with running(tmp_path, launch, 2) as process:
        process.kill()
        process.communicate(timeout=30)
        wait_until_gone(tmp_path)


def test_no_process_of_the_ranks_outlives_the_launchers_other_half(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script(WITH_GRANDCHILDREN)
    with running(tmp_path, launch, 2) as process:
        (half,) = children(process.pid)
        os.kill(half, signal.SIGKILL)
        _, err = process.communicate(timeout=30)
        wait_until_gone(tmp_path)
    assert process.returncode == 137
    assert err.rstrip().endswith("rueda: the launcher was killed by SIGKILL; all ranks are gone")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_no_process_of_the_ranks_outlives_a_signal_of_the_terminal(
    tmp_path: Path, launch: list[str], script: Script, number: signal.Signals
) -> None:
    script(WITH_GRANDCHILDREN)
    with running(tmp_path, launch, 2) as process:
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == 128 + number


def test_a_job_under_nohup_outlives_its_terminal(tmp_path: Path, script: Script) -> None:
    script("""
        pathlib.Path(f"ready.{rank}").touch()
        deadline = time.monotonic() + 30
        while not os.path.exists("go") and time.monotonic() < deadline:
            time.sleep(0.01)
    """)
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with running(tmp_path, ["run", "--no-mpi"], 2, ignoring) as process:
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err


def test_nobody_reads_the_output(tmp_path: Path, launch: list[str], script: Script) -> None:
    script("""
        pathlib.Path(f"ready.{rank}").touch()
        while True:
            print("line", flush=True)
            time.sleep(0.01)
    """)
    with running(tmp_path, launch, 2) as process:
        assert process.stdout is not None
        process.stdout.close()
        process.wait(timeout=30)
    assert process.returncode != 0
