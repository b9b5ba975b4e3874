"""Processes of other users of the host must neither become ranks nor see the job's secret."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import (
    check,
    check_under_mpirun,
    command,
    environment,
    find_mpirun,
    run,
    run_to_end,
)
from rueda.bench.group import Listener
from rueda.bench.wire import connect_to_driver
from rueda.errors import InitializationError
from rueda.horovod import meeting
from rueda.launcher_session import Session

NOBODY = 65534
HELLO = 0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")


def is_served(name: str) -> bool:
    """Whether a process listens at that socket, as visible to any user."""
    names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    return f"@{name}" in names


def is_answered(name: str, rank: int, size: int) -> bool:
    """Whether the rendezvous sends anything to a process that claims to be that rank."""
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(30)
        words = struct.pack("=4I", HELLO, rank, size, 32) + b"0" * 32
        try:
            stranger.connect("\0" + name)
            stranger.sendall(struct.pack("=2I", len(words), 1) + words)
            return stranger.recv(1) != b""
        except (ConnectionError, BrokenPipeError):
            return False


def in_another_process(user: int, act: Callable[[], bool]) -> bool:
    """The result of `act` in a process of that user."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            code = int(act())
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1)
    return status == 1


class Strangers:
    """Processes of this user and another that contact a rendezvous while a rank is late."""

    def __init__(self, folder: Path) -> None:
        self._name, self._go = folder / "name", folder / "go"
        self._answers = folder / "answers"
        self._watcher = os.fork()
        if self._watcher == 0:
            try:
                self._watch()
            finally:
                self._go.touch()
                os._exit(0)

    def late(self, condition: str) -> str:
        """The start of a program whose rank, if the condition holds, waits for the strangers."""
        return LATE.format(condition=condition, name=str(self._name), go=str(self._go))

    def answers(self) -> list[bool]:
        """Whether this user's process got an answer, and the other's. Ends them."""
        if not self._go.exists():
            os.kill(self._watcher, signal.SIGKILL)
        os.waitpid(self._watcher, 0)
        return [word == "1" for word in self._answers.read_text().split()]

    def _watch(self) -> None:
        deadline = time.monotonic() + 60
        name = ""
        while not name or not is_served(name):
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)
            if self._name.exists():
                name = self._name.read_text()
        # They only send a hello: nothing changes for the ranks.
        answers = [
            in_another_process(user, lambda: is_answered(name, 1, 2))
            for user in (os.geteuid(), NOBODY)
        ]
        self._answers.write_text(" ".join(str(int(answer)) for answer in answers))


LATE = """
import os, time
from rueda import lifecycle
original = lifecycle._native.init
def late(options):
    if {condition}:
        with open({name!r} + "~", "w") as file:
            file.write(os.environ["RUEDA_RENDEZVOUS"].removeprefix("unix:@"))
        os.rename({name!r} + "~", {name!r})
        deadline = time.monotonic() + 60
        while not os.path.exists({go!r}) and time.monotonic() < deadline:
            time.sleep(0.01)
    original(options)
lifecycle._native.init = late
"""


@needs_root
def test_no_other_user_joins_a_job_without_mpi(tmp_path: Path) -> None:
    strangers = Strangers(tmp_path)
    late = strangers.late("os.environ['RUEDA_RANK'] == '1'")
    script = tmp_path / "script.py"
    script.write_text(
        late
        + "import rueda\nrueda.init()\n"
        + "assert rueda.allgather_object(rueda.rank()) == [0, 1]\nprint('met')\n"
    )
    line = [sys.executable, "-m", "rueda", "run", "--no-mpi", "-np", "2"]
    ended = run_to_end([*line, *command(script)], None, 120, "rueda run")
    assert ended.returncode == 0, ended.output
    assert ended.output.count("met") == 2
    assert strangers.answers() == [True, False]


@needs_root
def test_no_other_user_joins_under_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    strangers = Strangers(tmp_path)
    late = strangers.late("os.environ['RANK'] == '1'")
    script = tmp_path / "script.py"
    script.write_text(
        late
        + "import torch, torch.distributed as dist, rueda.torch.c10d\n"
        + "dist.init_process_group('rueda')\nfound = [None, None]\n"
        + "dist.all_gather_object(found, dist.get_rank())\nassert found == [0, 1]\nprint('met')\n"
        + "dist.destroy_process_group()\n"
    )
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += ["--nproc-per-node", "2", str(script)]
    ended = run_to_end(line, None, 120, "torchrun")
    assert ended.returncode == 0, ended.output
    assert ended.output.count("met") == 2
    assert strangers.answers() == [True, False]


@needs_root
@needs_mpirun
def test_no_other_user_joins_some_of_the_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    strangers = Strangers(tmp_path)
    late = strangers.late("os.environ['OMPI_COMM_WORLD_RANK'] == '2'")
    script = tmp_path / "script.py"
    script.write_text(
        late
        + "import os, rueda.horovod.torch as hvd\n"
        + "if os.environ['OMPI_COMM_WORLD_RANK'] != '1':\n"
        + "    hvd.init(comm=[0, 2])\n    assert hvd.allgather_object(hvd.rank()) == [0, 1]\n"
        + "    print('met')\n"
    )
    ended = check_under_mpirun(script, 3)
    assert ended.output.count("met") == 2
    assert strangers.answers() == [True, False]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may become another user")
@pytest.mark.parametrize("stays_readable", [True, False])
def test_ranks_become_another_user_as_documented(stays_readable: bool) -> None:
    program = f"""
        import ctypes, os, numpy as np, rueda
        rueda.init()
        rueda.barrier()
        os.setuid(65534)
        if {stays_readable}:
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        rueda.barrier()
        try:
            rueda.allreduce(np.ones(1 << 20), name="large")
            print("summed")
        except rueda.TransportError as error:
            print(error)
    """
    for ended in run(program, 2):
        assert ended.returncode == 0, ended
        # Where the kernel or a sandbox forbids it from the start, the ranks use shared memory.
        remedied = "prctl(PR_SET_DUMPABLE, 1) permits it again" in ended.output
        assert "summed" in ended.output or (remedied and not stays_readable), ended


def test_the_secret_is_not_seen(tmp_path: Path) -> None:
    """Neither on a command line, nor in messages, nor in the timeline."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, pathlib, rueda
rueda.init()
secret = os.environ["RUEDA_SECRET"]
pathlib.Path(os.environ["SECRET_FILE"]).write_text(secret)
assert len(secret) >= 32
for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        assert secret not in line.read_bytes().decode(errors="replace"), line
    except OSError:
        pass
assert secret not in str(rueda.options())
rueda.allreduce([1.0], name="x")
rueda.shutdown()
print("ran")
"""
    )
    told = tmp_path / "told"
    line = [sys.executable, "-m", "rueda", "run", "--no-mpi", "-np", "2", "--verbose"]
    line += ["--log-level", "trace", "--timeline", str(tmp_path / "trace-%r.json")]
    extra = {"SECRET_FILE": str(told)}
    ended = run_to_end([*line, *command(program)], extra, 120, "rueda run")
    assert ended.output.count("]<stdout>: ran") == 2, ended.output
    secret = told.read_text()
    assert secret not in ended.output
    traces = list(tmp_path.glob("trace-*.json"))
    assert len(traces) == 2
    assert all(secret not in trace.read_text() for trace in traces)


def test_a_process_that_a_rank_starts_inherits_nothing(tmp_path: Path) -> None:
    """No descriptor of a world; and only its user may access what a rank shares."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, stat, subprocess, sys
import numpy as np
import rueda
LIST = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int))"
def inherited():
    child = [sys.executable, "-c", LIST]
    return subprocess.run(child, close_fds=False, capture_output=True, text=True, check=True).stdout
before = inherited()
rueda.init()
memory = rueda.empty(100_000, np.float32)
memory[:] = 1
rueda.allreduce_(memory, op=rueda.Sum, name="x")
assert np.all(memory == rueda.size())
assert inherited() == before, (inherited(), before)
shared = []
for name in os.listdir("/proc/self/fd"):
    try:
        if "memfd:rueda" in os.readlink(f"/proc/self/fd/{name}"):
            shared.append(stat.S_IMODE(os.stat(f"/proc/self/fd/{name}").st_mode))
    except OSError:
        pass
mapped = [line.split() for line in open("/proc/self/maps") if "memfd:rueda" in line]
assert mapped
for line in mapped:
    path = f"/proc/self/map_files/{line[0]}"
    if os.geteuid() == 0:
        shared.append(stat.S_IMODE(os.stat(path).st_mode))
assert all(mode == 0o600 for mode in shared), [oct(mode) for mode in shared]
rueda.shutdown()
print("ran")
"""
    )
    for transport in ("shm", "tcp"):
        line = [sys.executable, "-m", "rueda", "run", "--no-mpi", "-np", "2"]
        line += ["--transport", transport]
        ended = run_to_end([*line, *command(program)], {}, 120, "rueda run")
        assert ended.output.count("]<stdout>: ran") == 2, ended.output


def test_a_dry_run_does_not_show_a_secret() -> None:
    line = [sys.executable, "-m", "rueda", "run", "--no-mpi", "--dry-run", "-np", "2", "true"]
    ended = run_to_end(line, None, 60, "rueda run")
    assert ended.returncode == 0
    assert "RUEDA_RENDEZVOUS" in ended.output
    assert "SECRET" not in ended.output


def test_the_secret_of_a_job_is_not_handed_on_to_another() -> None:
    given = {"RUEDA_SECRET": "of the job around this one"}
    program = "import os; print(os.environ['RUEDA_SECRET'])"
    line = [sys.executable, "-m", "rueda", "run", "--no-mpi", "-np", "1"]
    ended = run_to_end([*line, *command(program)], given, 60, "rueda run")
    assert ended.returncode == 0, ended.output
    assert given["RUEDA_SECRET"] not in ended.output


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder that mpirun would create for its job."""
    for variable in ("RUEDA_SECRET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "session"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-host-123@1")
    monkeypatch.setenv("PMIX_SERVER_TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return folder


def test_members_of_a_job_meet_where_nobody_can_guess(
    launched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = meeting.meeting_of("0,2")
    assert meeting.meeting_of("0,2") == found
    assert meeting.meeting_of("0,1") != found
    assert len(found.secret) >= 32
    assert re.fullmatch(r"unix:@rueda-[0-9a-f]{32}", found.address)
    files = list(launched.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    # The same names in another folder lead elsewhere: nothing derives from what others know.
    another = launched.with_name("another")
    another.mkdir(mode=0o700)
    monkeypatch.setenv("PMIX_SERVER_TMPDIR", str(another))
    elsewhere = meeting.meeting_of("0,2")
    assert elsewhere.address != found.address
    assert elsewhere.secret != found.secret


def test_members_meet_only_in_a_folder_of_their_own(launched: Path, tmp_path: Path) -> None:
    launched.chmod(0o755)
    own = tmp_path / f"rueda-{os.geteuid()}"
    found = meeting.meeting_of("0,2")
    assert list(launched.iterdir()) == []
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert len(list(own.iterdir())) == 1
    assert meeting.meeting_of("0,2") == found
    own.chmod(0o777)
    with pytest.raises(InitializationError, match="not a folder of this user alone"):
        meeting.meeting_of("0,2")


def test_members_of_a_job_with_a_secret_meet_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUEDA_RENDEZVOUS", "unix:@rueda-known")
    monkeypatch.setenv("RUEDA_SECRET", "a" * 32)
    found = meeting.meeting_of("0,2")
    assert meeting.meeting_of("0,2") == found
    assert meeting.meeting_of("0,1").address != found.address
    assert "a" * 32 not in found.secret + found.address
    monkeypatch.setenv("RUEDA_SECRET", "b" * 32)
    assert meeting.meeting_of("0,2").address != found.address


def test_the_store_for_torch_listens_on_the_loopback_alone() -> None:
    pytest.importorskip("torch.distributed")
    check(
        """
        import torch.distributed as dist, rueda.torch.c10d
        dist.init_process_group("rueda", init_method="rueda://")
        store = dist.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        found = []
        for table in ("tcp", "tcp6"):
            for line in open(f"/proc/net/{table}").readlines()[1:]:
                address, _, state = line.split()[1:4]
                host, port = address.split(":")
                if state == "0A" and int(port, 16) == store.port:
                    found.append(host)
        assert found == ["0100007F"], found  # 127.0.0.1
        dist.barrier()
        dist.destroy_process_group()
        """,
        2,
    )


def test_a_rendezvous_over_tcp_needs_a_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"RUEDA_RENDEZVOUS": f"tcp:127.0.0.1:{port}"}
    program = """
        import rueda
        try:
            rueda.init()
        except rueda.InitializationError as error:
            print("refused:", error)
        else:
            print("met", rueda.allreduce([1.0], op=rueda.Sum, name="x"))
        """
    ended = check(program, 2, extra=world)
    assert all("needs RUEDA_SECRET" in rank.output for rank in ended)
    ended = check(program, 2, extra={**world, "RUEDA_SECRET": os.urandom(16).hex()})
    assert all("met [2.]" in rank.output for rank in ended)
    assert "RUEDA_SECRET" not in environment()


def is_refused(act: Callable[[], object]) -> bool:
    """Whether `act` raises that the socket belongs to another user."""
    try:
        act()
    except PermissionError as error:
        return "another user's" in str(error)
    return False


@needs_root
def test_a_rank_says_nothing_to_a_launcher_of_another_user() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0rueda-test-" + secrets.token_hex(8))
        listener.listen()
        address = "@" + listener.getsockname()[1:].decode()
        assert not is_refused(lambda: Session(address).close())
        # It is root's, as which `rueda run` may have been started for other users' ranks.
        assert not in_another_process(NOBODY, lambda: is_refused(lambda: Session(address)))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0rueda-test-" + secrets.token_hex(8))
        in_another_process(NOBODY, lambda: listener.listen() is None)  # now owns it
        address = "@" + listener.getsockname()[1:].decode()
        assert is_refused(lambda: Session(address))


@needs_root
def test_the_driver_of_the_benchmark_and_its_ranks_are_of_one_user() -> None:
    listener = Listener()
    with socket.socket(socket.AF_UNIX) as rank:
        connect_to_driver(rank, listener.address)
        connection = listener.accept(10)
        assert connection is not None
        connection.close()

    def come() -> bool:
        with socket.socket(socket.AF_UNIX) as rank:
            return is_refused(lambda: connect_to_driver(rank, listener.address))

    assert in_another_process(NOBODY, come)
    assert listener.accept(10) is None  # the refused one, which has connected all the same
    listener.close()
