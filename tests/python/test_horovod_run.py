"""horovod.run(): a function on ranks that the launcher starts."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest
import rueda
import rueda.horovod
from launching import environment, find_mpirun
from rueda.horovod.runner.desk import DESK, Desk, deliver, fetch

pytest.importorskip("cloudpickle")
run = rueda.horovod.run
needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a user's process that no launcher has started."""
    kept = environment()
    for name in os.environ.keys() - kept.keys():
        monkeypatch.delenv(name)
    for name, value in kept.items():
        monkeypatch.setenv(name, value)


def total(first: float, *rest: float, factor: float = 1.0) -> tuple[int, float] | str | None:
    """Without torch, whose import takes most of a rank's start."""
    import numpy as np
    import rueda
    from rueda.horovod.basics import init, rank

    assert "HOROVOD_RUN_DESK" not in os.environ
    init()
    value = np.array([(first + sum(rest)) * factor])
    found = float(rueda.allreduce(value, "total", rueda.Sum)[0])
    return [(0, found), "the second", None][rank()]


@pytest.mark.parametrize(
    "given", [{"use_gloo": True}, pytest.param({"use_mpi": True}, marks=needs_mpirun), {}]
)
def test_results_are_by_rank(given: dict[str, Any]) -> None:
    found = run(total, (1, 20), {"factor": 2.0}, num_proc=3, **given)
    assert found == [(0, 126.0), "the second", None]


def fails(kind: type[BaseException]) -> None:
    import rueda
    from rueda.horovod.basics import init, rank

    init()
    if rank() == 1:
        raise kind("a bad row in the data")
    rueda.barrier()


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit])
def test_the_error_of_a_rank_is_told(
    kind: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    told = "one or more processes exited with non-zero status: rank 1: .*a bad row in the data"
    with pytest.raises(RuntimeError, match=told) as caught:
        run(fails, (kind,), num_proc=2, use_gloo=True)
    assert isinstance(caught.value.__cause__, KeyError if kind is KeyError else rueda.RuedaError)
    if kind is KeyError:
        assert "rank 1 on" in capfd.readouterr().err


def fails_early(before_init: bool) -> None:
    import rueda
    from rueda.horovod.basics import init
    from rueda.horovod.exceptions import translating

    if os.environ["RUEDA_RANK"] == "1" and before_init:
        raise ValueError("no such file")
    init()
    if rueda.rank() == 1:
        raise ValueError("no such file")
    with translating():
        rueda.barrier()


@pytest.mark.parametrize("before_init", [True, False])
def test_the_error_of_a_rank_that_others_wait_for_is_told(before_init: bool) -> None:
    """Errors that the others raise under Horovod's names because of the loss are not the cause."""
    with pytest.raises(RuntimeError, match="rank 1: ValueError: no such file"):
        run(fails_early, (before_init,), num_proc=2, use_gloo=True)


def returns_what_only_ranks_know(pid: int) -> Any:
    import os

    class Unreadable:
        def __reduce__(self) -> Any:
            return eval, (f"__import__('os').getpid() == {pid} and [][0]",)

    return Unreadable() if os.environ["RUEDA_RANK"] == "1" else None


def test_a_result_that_cannot_be_unpickled_is_told() -> None:
    told = "rank 1: .*cannot be unpickled here: IndexError"
    with pytest.raises(RuntimeError, match=told):
        run(returns_what_only_ranks_know, (os.getpid(),), num_proc=2, use_gloo=True)


def search_path() -> list[str]:
    return sys.path


def test_ranks_find_what_is_on_the_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also entries below, or beside, Python's own folders."""
    below, beside = f"{sys.prefix}/src/app", f"{sys.prefix}-src"
    named = next(path for path in sys.path if path.endswith("site-packages"))
    monkeypatch.setattr(sys, "path", [below, beside, tmp_path, *sys.path])
    monkeypatch.setenv("PYTHONPATH", f"{named}:{os.environ.get('PYTHONPATH', '')}")
    (found,) = run(search_path, use_gloo=True)
    assert {below, beside} <= set(found)
    assert found.index(named) < found.index(os.path.dirname(os.__file__))


_CALLER = """
import os, sys, time, rueda.horovod

def sleeps(folder):
    import os, signal, time
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), os._exit(1)))
    open(f"{folder}/{os.getpid()}", "w").close()
    time.sleep(600)

try:
    rueda.horovod.run(sleeps, (sys.argv[1],), num_proc=2, use_gloo=True)
except KeyboardInterrupt:
    living = [pid for pid in os.listdir(sys.argv[1]) if os.path.exists(f"/proc/{pid}")]
    sys.exit(f"interrupted; there are {living}")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_the_caller(number: signal.Signals, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _CALLER, tmp_path], stderr=subprocess.PIPE, text=True
    ) as caller:
        try:
            while len(list(tmp_path.iterdir())) < 2:
                assert caller.poll() is None
                time.sleep(0.05)
            caller.send_signal(number)
            _, said = caller.communicate()  # until the launcher, which has the pipe too, ends
        finally:
            caller.kill()
    ranks = [Path("/proc", file.name) for file in tmp_path.iterdir()]
    assert len(ranks) == 2
    assert "interrupted; there are []" in said or number is not signal.SIGINT
    while any(rank.exists() for rank in ranks):
        time.sleep(0.05)


def test_a_rank_that_ends_without_a_word_is_told() -> None:
    with pytest.raises(RuntimeError, match=r"non-zero status: exit code 3: .*rank \d .*code 3"):
        run(os._exit, (3,), num_proc=2, use_gloo=True)


def where() -> tuple[str, str | None]:
    return sys.executable, os.environ.get("FROM_SSH")


def test_ranks_of_another_host_fetch_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other host is this one, under a name that only ssh knows."""
    ssh = tmp_path / "ssh"
    last = 'for word; do :; done; exec sh -c "$word"'
    ssh.write_text(f'#!/bin/sh\necho "$@" >> "$0.log"\nexport FROM_SSH=yes\n{last}\n')
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    identity = tmp_path / "an identity"
    given = {"ssh_port": 2222, "ssh_identity_file": identity, "network_interfaces": {"lo"}}
    assert run(where, hosts="elsewhere:1", **given) == [(sys.executable, "yes")]
    assert f"-p 2222 -i {identity} " in (tmp_path / "ssh.log").read_text()


@pytest.mark.parametrize("name", ["hosts", "hostfile"])
def test_hosts(name: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("localhost slots=2\n")
    given = {"hosts": "localhost:1,127.0.0.1:1", "hostfile": file}
    assert len(run(where, num_proc=2, output_filename=tmp_path / "out", **{name: given[name]})) == 2
    assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"hosts": "a:1", "hostfile": "b"}, "hosts and hostfile are given"),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi are given"),
        ({"num_proc": 0}, "num_proc=0 is not a number of ranks"),
        ({"args": 5}, "args=5: "),
        ({"func": None}, "func=None cannot be called"),
        ({"hosts": "a b:1"}, "'a b:1' is not a host"),
        ({"hostfile": "/no/such/file"}, "/no/such/file"),
        ({"ssh_port": "x"}, "ssh_port='x' is not a number of a port"),
        ({"network_interfaces": [5]}, "network_interfaces=.*: pass the names"),
        ({"network_interfaces": 5}, "network_interfaces=5: pass the names"),
        ({"hosts": 5}, "hosts=5: pass a text"),
        ({"hosts": ""}, "-H names no host"),
        ({"hostfile": 5}, "hostfile=5 is not a location"),
        ({"start_timeout": "x"}, "start_timeout='x' is not a time"),
        ({"output_filename": 5}, "output_filename=5 is not a location"),
        ({"ssh_identity_file": 5}, "ssh_identity_file=5 is not a location"),
        ({"mpi_args": "-x A", "use_gloo": True}, "mpi_args and use_gloo are given"),
        ({"ssh_port": 22, "use_mpi": True}, "ssh_port=22: mpirun reaches hosts in its own way"),
        ({"ssh_identity_file": "id", "mpi_args": "-x A"}, "ssh_identity_file='id': mpirun"),
        ({"mpi_args": ["-x"]}, "mpi_args=.*: pass a text"),
        ({"args": (sys._getframe(),)}, "what horovod.run.. is to call cannot be pickled"),
    ],
)
def test_what_cannot_work_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(rueda.InvalidArgumentError, match=told):
        run(**{"func": where, **given})


@pytest.mark.parametrize(
    "name",
    ["min_num_proc", "min_np", "max_num_proc", "max_np", "slots", "reset_limit", "cooldown_range"],
)
def test_an_elastic_job_is_refused(name: str) -> None:
    with pytest.raises(rueda.UnsupportedError, match=f"{name}=2: .*`rueda run --min-np`"):
        run(where, **{name: 2})


def test_old_names_warn() -> None:
    with pytest.warns(DeprecationWarning, match="np is deprecated, use num_proc"):
        assert len(run(where, np=2)) == 2
    with pytest.warns(DeprecationWarning, match="use network_interfaces"):
        assert len(run(where, network_interface="lo")) == 1


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
def test_a_desk_at_an_address_of_ipv6() -> None:
    with Desk("::1", b"function") as desk:
        assert fetch(desk.told) == b"function"
        deliver(desk.told, 0, b"")
    with pytest.raises(rueda.InitializationError, match=r"cannot reach .* at ::1"):
        fetch(desk.told)


def test_a_desk_that_lacks_descriptors_goes_on_once_there_are_some() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as taken, Desk("127.0.0.1", b"function") as desk:
        address, port, _ = desk.told.split()
        waiting = taken.enter_context(socket.socket())
        files = len(os.listdir("/proc/self/fd"))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files + 8, before[1]))
            with ExitStack() as short:
                for _ in range(100):
                    try:
                        short.enter_context(open(os.devnull))
                    except OSError:
                        break
                waiting.connect((address, int(port)))
                time.sleep(0.2)  # accept() fails
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert waiting.recv(1) != b""
        assert fetch(desk.told) == b"function"


def test_strangers_are_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rueda.horovod.runner.desk._HANDSHAKE_TIMEOUT", 1)
    with Desk("127.0.0.1", b"secret") as desk:
        address, port, _ = desk.told.split()
        with socket.create_connection((address, int(port))) as silent:
            while silent.recv(64):
                pass
        assert fetch(desk.told) == b"secret"


def test_a_desk_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rueda.horovod.runner.desk._DESK_TIMEOUT", 1)
    with socket.create_server(("127.0.0.1", 0)) as dead:
        told = f"127.0.0.1 {dead.getsockname()[1]} 00"
        with pytest.raises(rueda.InitializationError, match="does not answer within 1 s"):
            fetch(told)


def test_nobody_without_the_key_is_told_anything() -> None:
    with Desk("127.0.0.1", b"secret") as desk:
        address, port, key = desk.told.split()
        assert fetch(desk.told) == b"secret"
        with pytest.raises(AuthenticationError):
            fetch(f"{address} {port} {'00' * (len(key) // 2)}")
        # Strangers that send nothing, or too much, delay nobody.
        with socket.create_connection((address, int(port))) as silent:
            with socket.create_connection((address, int(port))) as loud:
                loud.sendall(b"\xff" * 4096)
            assert fetch(desk.told) == b"secret"
            silent.sendall(b"\x00")
        assert desk.outcomes() == {}
    assert DESK not in os.environ
    with pytest.raises(ConnectionError):
        Client((address, int(port)), authkey=bytes.fromhex(key))
