from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from rueda.launcher.processes import children
from rueda_command import LAUNCHER, launcher_environment

from .conftest import has_ended

pytestmark = pytest.mark.usefixtures("no_survivors")
Script = Callable[[str], str]


@contextmanager
def running(
    tmp_path: Path,
    arguments: list[str],
    ranks: int,
    before: Sequence[str] = (),
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> Iterator[subprocess.Popen[str]]:
    """Runs the launcher behind the words `before`, and yields it once all ranks have started."""
    process = subprocess.Popen(
        [*before, *LAUNCHER, *arguments, "-np", str(ranks), "python3", "program.py"],
        env={**launcher_environment(), "OMP_NUM_THREADS": "1"},  # or the launcher prints a hint
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
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


def keeper_and_supervisor_of(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Returns the launcher's keeper, which adopts orphans, and the supervisor of the job."""
    (keeper,) = children(process.pid)
    (supervisor,) = children(keeper)
    return keeper, supervisor


def wait_until_gone(tmp_path: Path) -> None:
    deadline = time.monotonic() + 30
    pids = {file.name: int(file.read_text()) for file in tmp_path.glob("pid.*")}
    while left := [name for name, pid in pids.items() if not has_ended(pid)]:
        assert time.monotonic() < deadline, f"{left} outlive the launcher"
        time.sleep(0.05)


def wait_until(is_so: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.05)


def test_no_process_of_the_ranks_outlives_a_killed_launcher(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script(WITH_GRANDCHILDREN)
    with running(tmp_path, launch, 2) as process:
        process.kill()
        _, err = process.communicate(timeout=30)
        wait_until_gone(tmp_path)
    assert err.rstrip().endswith("rueda: the launcher was killed; all ranks are gone")


@pytest.mark.parametrize("victim", ["keeper", "supervisor"])
def test_no_process_of_the_ranks_outlives_another_process_of_the_launcher(
    tmp_path: Path, launch: list[str], script: Script, victim: str
) -> None:
    script(WITH_GRANDCHILDREN)
    with running(tmp_path, launch, 2) as process:
        keeper, supervisor = keeper_and_supervisor_of(process)
        os.kill({"keeper": keeper, "supervisor": supervisor}[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=30)
        wait_until_gone(tmp_path)
    assert process.returncode == 137
    assert err.rstrip().endswith("rueda: the launcher was killed by SIGKILL; all ranks are gone")


def test_no_process_of_the_ranks_outlives_all_that_has_the_words_of_the_command(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    """As after `pkill -KILL -f` with words of the launcher's command line."""
    script(WITH_GRANDCHILDREN)
    with running(tmp_path, launch, 2) as process:
        keeper, supervisor = keeper_and_supervisor_of(process)
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        for pid in (supervisor, process.pid, keeper):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == words:
                os.kill(pid, signal.SIGKILL)
        assert Path(f"/proc/{keeper}/cmdline").read_bytes().startswith(b"rank keeper\0")
        process.communicate(timeout=30)
        wait_until_gone(tmp_path)
        wait_until(lambda: has_ended(keeper), "the keeper is still there")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_no_process_of_the_ranks_outlives_a_signal_of_the_terminal(
    tmp_path: Path, launch: list[str], script: Script, number: signal.Signals
) -> None:
    script(WITH_GRANDCHILDREN)
    with running(tmp_path, launch, 2) as process:
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == 128 + number


UNTIL_GO = """
    pathlib.Path(f"ready.{rank}").touch()
    deadline = time.monotonic() + 30
    while not os.path.exists("go") and time.monotonic() < deadline:
        time.sleep(0.01)
"""


def test_a_job_under_nohup_outlives_its_terminal(tmp_path: Path, script: Script) -> None:
    script(UNTIL_GO)
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with running(tmp_path, ["run", "--no-mpi"], 2, ignoring) as process:
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err


# Blocks all signals, and becomes the command that follows.
BLOCKING = [
    sys.executable,
    "-c",
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); "
    "os.execvp(sys.argv[1], sys.argv[1:])",
]


def test_a_job_ends_by_itself_though_its_parent_has_blocked_the_signals(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script(UNTIL_GO)
    with running(tmp_path, launch, 2, BLOCKING) as process:
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err


def test_a_connection_whose_other_end_is_gone_does_not_end_the_job(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    """Writing to it raises SIGPIPE too."""
    script(UNTIL_GO)
    with running(tmp_path, launch, 2) as process:
        process.send_signal(signal.SIGPIPE)
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


@pytest.fixture
def unread_pipe() -> Iterator[tuple[int, int]]:
    """A full pipe that nobody reads."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    for size in (1 << 16, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(write_end, b"." * size)
    os.set_blocking(write_end, True)
    yield read_end, write_end
    os.close(write_end)


@contextmanager
def closed_afterwards(read_end: int) -> Iterator[None]:
    """Closes the read end, which unblocks its writers, so that a failing test ends."""
    try:
        yield
    finally:
        os.close(read_end)


# Writes more than any pipe holds, so that whoever relays it has to wait for a reader.
WRITING = """
    def write_for_ever(descriptor):
        os.set_blocking(descriptor, False)
        try:
            for _ in range(100):
                os.write(descriptor, b"x" * 999 + b"\\n")
        except BlockingIOError:
            pass
        pathlib.Path(f"ready.{rank}").touch()
        os.set_blocking(descriptor, True)
        while True:
            os.write(descriptor, b"x" * 999 + b"\\n")
"""
UNREAD = pytest.mark.parametrize("unread", [("stdout",), ("stderr",), ("stdout", "stderr")])


def write_to(streams: Sequence[str]) -> str:
    return f"\n    write_for_ever({1 if streams[0] == 'stdout' else 2})\n"


@UNREAD
def test_no_process_outlives_a_killed_launcher_whose_output_is_not_read(
    tmp_path: Path,
    launch: list[str],
    script: Script,
    unread_pipe: tuple[int, int],
    unread: Sequence[str],
) -> None:
    before_ready = WITH_GRANDCHILDREN.partition('    pathlib.Path(f"ready.')[0]
    script(before_ready + WRITING + write_to(unread))
    read_end, write_end = unread_pipe
    with (
        running(tmp_path, launch, 2, **dict.fromkeys(unread, write_end)) as process,
        closed_afterwards(read_end),
    ):
        keeper, supervisor = keeper_and_supervisor_of(process)
        (tmp_path / "pid.keeper").write_text(str(keeper))
        (tmp_path / "pid.supervisor").write_text(str(supervisor))
        process.kill()
        process.wait(timeout=30)
        wait_until_gone(tmp_path)


@UNREAD
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_job_whose_output_is_not_read(
    tmp_path: Path,
    launch: list[str],
    script: Script,
    unread_pipe: tuple[int, int],
    unread: Sequence[str],
    number: signal.Signals,
) -> None:
    script(WRITING + write_to(unread))
    read_end, write_end = unread_pipe
    with (
        running(tmp_path, launch, 2, **dict.fromkeys(unread, write_end)) as process,
        closed_afterwards(read_end),
    ):
        process.send_signal(number)
        process.wait(timeout=30)
        assert process.returncode == 128 + number
        if "stderr" not in unread:
            assert process.stderr is not None
            last_line = process.stderr.read().rstrip().rpartition("\n")[2]
            assert last_line == f"rueda: ended by {number.name}; all ranks are gone"


@pytest.mark.parametrize("flags", [("--min-np", "1"), ("--min-np", "1", "--max-np", "2")], ids=str)
def test_a_signal_ends_a_job_that_has_lost_a_rank_and_whose_output_is_not_read(
    tmp_path: Path, script: Script, unread_pipe: tuple[int, int], flags: Sequence[str]
) -> None:
    """The launcher has its own message to write, and must not wait for a reader."""
    write = "\n    if rank == 0:\n        write_for_ever(2)\n"
    lose = """
    pathlib.Path(f"ready.{rank}").touch()
    while len(list(pathlib.Path().glob("ready.*"))) < size:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    program = "import rueda\n    rueda.init()\n" if len(flags) > 2 else ""
    script(f"    {program}" + WRITING + write + lose)
    read_end, write_end = unread_pipe
    with (
        running(
            tmp_path, ["run", *flags, "--grace", "0.5"], 2, stdout=write_end, stderr=write_end
        ) as process,
        closed_afterwards(read_end),
    ):
        _, supervisor = keeper_and_supervisor_of(process)
        wait_until(lambda: has_ended(int((tmp_path / "pid.1").read_text())), "rank 1 lives")
        wait_until(lambda: is_idle(supervisor), "the launcher does not wait")
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


def is_idle(pid: int) -> bool:
    """Whether the process's main thread sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_output_that_is_read_after_the_ranks_end_is_whole(
    tmp_path: Path, launch: list[str], script: Script
) -> None:
    script("""
        pathlib.Path(f"ready.{rank}").touch()
        for n in range(10000):
            print("line", n)
    """)
    with running(tmp_path, launch, 2) as process:
        wait_until_gone(tmp_path)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    lines = out.splitlines()
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[{rank}]")]
        assert own == [f"[{rank}]<stdout>: line {n}" for n in range(10000)]


# After a signal, exits well only once the test creates `go`.
SAVING = """
    def save(number, frame):
        pathlib.Path(f"told.{rank}").touch()
        deadline = time.monotonic() + 60
        while not os.path.exists("go") and time.monotonic() < deadline:
            time.sleep(0.01)
        pathlib.Path(f"saved.{rank}").touch()
        sys.exit()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, save)
    pathlib.Path(f"ready.{rank}").touch()
    time.sleep(100)
"""
PATIENT = ["run", "--no-mpi", "--grace", "60"]  # mpirun has its own grace period


def wait_for_files(tmp_path: Path, name: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob(f"{name}.*"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"the ranks did not write '{name}'"
        time.sleep(0.01)


def wait_until_taken(pid: int, number: signal.Signals) -> None:
    """Waits until the process, which blocks the signal, has taken it."""
    deadline = time.monotonic() + 30
    while True:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        if not int(status["ShdPnd"], 16) & 1 << (number - 1):
            return
        assert time.monotonic() < deadline, f"the launcher did not take {number.name}"
        time.sleep(0.01)


@pytest.mark.parametrize("first", ["guardian", "supervisor"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_the_launcher_is_one(
    tmp_path: Path, script: Script, number: signal.Signals, first: str
) -> None:
    script(SAVING)
    with running(tmp_path, PATIENT, 2) as process:
        keeper, supervisor = keeper_and_supervisor_of(process)
        if first == "supervisor":
            os.kill(process.pid, signal.SIGSTOP)  # relays only after the ranks have been told
        for pid in (process.pid, keeper, supervisor):
            os.kill(pid, number)
        wait_for_files(tmp_path, "told", process)
        os.kill(process.pid, signal.SIGCONT)
        wait_until_taken(process.pid, number)
        # The launcher acts on the signal before it sees the effects of this.
        (tmp_path / "go").touch()
        wait_for_files(tmp_path, "saved", process)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert err.rstrip().endswith(f"rueda: ended by {number.name}; all ranks are gone")


@pytest.mark.parametrize("targets", [("guardian",), ("guardian", "supervisor")])
def test_a_second_signal_kills_at_once(
    tmp_path: Path, script: Script, targets: Sequence[str]
) -> None:
    script(SAVING)
    with running(tmp_path, PATIENT, 2) as process:
        _, supervisor = keeper_and_supervisor_of(process)
        pids = [{"guardian": process.pid, "supervisor": supervisor}[name] for name in targets]
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        wait_for_files(tmp_path, "told", process)
        wait_until_taken(process.pid, signal.SIGTERM)
        for pid in pids:  # by another process: one process's signals at once count once
            subprocess.run(["kill", "-TERM", str(pid)], check=True)
        process.communicate(timeout=30)
    assert process.returncode == 143
    assert not list(tmp_path.glob("saved.*"))


def test_timeout_which_signals_twice_leaves_ranks_their_grace(
    tmp_path: Path, script: Script
) -> None:
    script(SAVING)
    ending = ["timeout", "--preserve-status", "100"]
    with running(tmp_path, PATIENT, 2, ending) as process:
        process.send_signal(signal.SIGTERM)  # as on a timeout: to its child and to its group
        wait_for_files(tmp_path, "told", process)
        (guardian,) = children(process.pid)
        wait_until_taken(guardian, signal.SIGTERM)
        (tmp_path / "go").touch()
        wait_for_files(tmp_path, "saved", process)
        process.communicate(timeout=30)
    assert process.returncode == 143


def test_ranks_get_signals_that_the_launchers_parent_has_blocked(
    tmp_path: Path, script: Script
) -> None:
    script(SAVING)
    with running(tmp_path, PATIENT, 2, BLOCKING) as process:
        process.send_signal(signal.SIGTERM)
        wait_for_files(tmp_path, "told", process)
        (tmp_path / "go").touch()
        wait_for_files(tmp_path, "saved", process)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 143, err


# Ends well once it has received two signals.
CHECKPOINTING = """
    took = []
    signal.signal(signal.SIGUSR1, lambda *_: took.append(1))
    signal.signal(signal.SIGUSR2, lambda *_: took.append(2))
    child = subprocess.Popen(["sleep", "100"])  # has no handler
    pathlib.Path(f"ready.{rank}").touch()
    deadline = time.monotonic() + 30
    while len(took) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
        if took:
            pathlib.Path(f"told.{rank}").touch()
    time.sleep(0.2)
    print("took", *took, flush=True)
    if "RUEDA_RANK" in os.environ:  # mpirun tells it, too
        assert child.poll() is None
    child.kill()
"""


@pytest.mark.parametrize("targets", [("guardian",), ("guardian", "supervisor")], ids=str)
def test_signals_of_a_batch_system_reach_the_ranks_and_end_nothing(
    tmp_path: Path, any_launch: list[str], script: Script, targets: Sequence[str]
) -> None:
    script(CHECKPOINTING)
    with running(tmp_path, any_launch, 2) as process:
        keeper, supervisor = keeper_and_supervisor_of(process)
        pids = [{"guardian": process.pid, "supervisor": supervisor}[name] for name in targets]
        for pid in (keeper, *pids):
            os.kill(pid, signal.SIGUSR1)
        wait_for_files(tmp_path, "told", process)
        for pid in pids:
            os.kill(pid, signal.SIGUSR2)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.count("took 1 2\n") == 2, out + err


def zombies_of(pid: int) -> list[int]:
    return [child for child in children(pid) if has_ended(child)]


@pytest.mark.parametrize("flags", [("--no-mpi",), ("--min-np", "1", "--max-np", "2")], ids=str)
def test_the_launcher_keeps_no_zombies_of_what_ranks_have_left(
    tmp_path: Path, script: Script, flags: Sequence[str]
) -> None:
    script("""
        for number in range(8):
            subprocess.run(["sh", "-c", f"sleep 0.1 & echo $! >pid.left{rank}.{number}"])
        pathlib.Path(f"ready.{rank}").touch()
        time.sleep(100)
    """)
    with running(tmp_path, ["run", *flags, "--grace", "0.5"], 2) as process:
        _, supervisor = keeper_and_supervisor_of(process)
        files = list(tmp_path.glob("pid.left*"))
        assert len(files) == 16
        for file in files:
            pid = int(file.read_text())
            wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"{file.name} is still there")  # noqa: B023
        assert not zombies_of(supervisor)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def test_what_a_lost_rank_has_left_ends_while_the_others_go_on(
    tmp_path: Path, script: Script
) -> None:
    script("""
        if rank == 1:
            for name, words in (("one", ""), ("stubborn", "trap '' TERM;")):
                child = subprocess.Popen(["sh", "-c", words + "while :; do sleep 0.2; done"])
                pathlib.Path(f"pid.{name}").write_text(str(child.pid))
        pathlib.Path(f"ready.{rank}").touch()
        while rank == 0:
            time.sleep(1)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    with running(tmp_path, ["run", "--min-np", "1", "--grace", "0.5"], 2) as process:
        for name in ("one", "stubborn"):
            pid = int((tmp_path / f"pid.{name}").read_text())
            wait_until(lambda: has_ended(pid), f"{name} outlives its rank")  # noqa: B023
        assert process.poll() is None
        assert not has_ended(int((tmp_path / "pid.0").read_text()))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
