"""Forked ranks must behave like ranks that Python starts."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from pathlib import Path

import forked
import pytest
from forked import ForkedRank, launched
from launching import Job, environment, run
from net.lab.fixture import MakeLab

pytest.importorskip("torch")

WHO = "import os, sys; print(os.getppid(), os.getsid(0) == os.getpid(), hash('text'), sys.argv, os.getcwd())"


def test_children_of_the_tests_with_sessions_arguments_and_hashes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Earlier tests of this process may have compiled, which sets this variable.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with Job(f"import torch\n{WHO}", 3, ["an argument"], folder=tmp_path) as job:
        assert all(isinstance(rank, ForkedRank) for rank in job.ranks)
        told = [how.output.split(maxsplit=3) for how in job.wait()]
    assert {parent for parent, *_ in told} == {str(os.getpid())}
    assert {own for _, own, *_ in told} == {"True"}
    assert {rest.strip() for *_, rest in told} == {f"['-c', 'an argument'] {tmp_path}"}
    assert told[0][2] != told[1][2] != told[2][2]


def test_how_they_end() -> None:
    for text, expected, written in (
        ("sys.exit(3)", 3, ""),
        ("sys.exit('a reason')", 1, "a reason"),
        ("raise ValueError('what is wrong')", 1, "ValueError: what is wrong"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT, "Interrupt"),
    ):
        for ended in run(f"import os, signal, sys, time, torch\n{text}", 2):
            assert ended.returncode == expected, ended
            assert written in ended.output, ended


def test_only_the_first_one_clears_the_modules_of_torch() -> None:
    program = """
    import atexit, sys, torch
    class Kept:
        def __del__(self):
            print("cleared", flush=True)
    torch.kept_by_the_test = Kept()
    atexit.register(print, "handlers")
    sys.exit(3)
    """
    outputs = [ended.output.split() for ended in run(program, 3)]
    assert outputs == [["handlers", "cleared"], ["handlers"], ["handlers"]]


def test_waiting_for_one_has_a_limit() -> None:
    with Job("import time, torch; print('here'); time.sleep(60)", 1) as job:
        job.wait_for_output(0, "here")
        with pytest.raises(subprocess.TimeoutExpired):
            job.ranks[0].wait(0)
        assert job.ranks[0].poll() is None
        job.ranks[0].kill()
        assert job.ranks[0].wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("module", ["numpy", "rueda"])
def test_without_torch_they_are_forked_off_one_that_has_numpy(module: str) -> None:
    program = f"import sys; assert 'numpy' in sys.modules\nimport {module}\nassert 'torch' not in sys.modules"
    with Job(program, 2) as job:
        assert all(isinstance(rank, ForkedRank) for rank in job.ranks)
        assert [rank.returncode for rank in job.wait()] == [0, 0], job.report()


def test_others_are_started_as_usual() -> None:
    """Ranks without torch or NumPy, or with variables that Python or OpenMP read at start."""
    for program, extra in (
        ("import sys; assert 'numpy' not in sys.modules", {}),
        ("import torch; assert torch.get_num_threads() == 2", {"OMP_NUM_THREADS": "2"}),
    ):
        with Job(program, 1, extra=extra) as job:
            assert isinstance(job.ranks[0], subprocess.Popen)
            assert job.wait()[0].returncode == 0, job.report()


def test_launchers_start_a_process_that_stands_in_for_the_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, helper\n"
        "assert 'torch' in sys.modules\n"
        "print(sys.argv, os.getcwd(), os.environ['TOLD'], __file__)\n"
        "print('an error', file=sys.stderr)\n"
        "sys.exit(3)\n"
    )
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "helper.py").touch()
    ended = subprocess.run(
        launched(program, ["an argument"]),
        cwd=tmp_path,
        env=environment({"TOLD": "this", "PYTHONPATH": str(tmp_path / "more")}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 3, ended
    assert ended.stdout == f"{[str(program), 'an argument']} {tmp_path} this {program}\n"
    assert ended.stderr == "an error\n"


def test_in_a_lab_the_rank_is_on_its_host(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    text = "import os, socket, torch\nprint(socket.gethostname(), sorted(os.listdir('/sys/class/net')))"
    assert lab.run("h1", *launched(text)).stdout == "h1 ['eth0', 'lo']\n"


@pytest.mark.parametrize(
    ("program", "sent", "code"),
    [
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))", signal.SIGTERM, 5),
        ("pass", signal.SIGTERM, -signal.SIGTERM),
        ("pass", signal.SIGINT, -signal.SIGINT),
        ("pass", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_its_signals_and_its_end_are_those_of_the_rank(
    program: str, sent: signal.Signals, code: int
) -> None:
    text = f"import os, signal, sys, time\n{program}\nprint(os.getpid())\ntime.sleep(600)"
    with subprocess.Popen(
        launched(text), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as stand_in:
        assert stand_in.stdout is not None
        rank = os.pidfd_open(int(stand_in.stdout.readline()))
        stand_in.send_signal(sent)
        assert stand_in.wait(60) == code
        assert select.select([rank], [], [], 60)[0], "it goes on"
        os.close(rank)


def test_one_that_does_not_answer_fails_the_test_and_not_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent = subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(forked, "_FORKING_LIMIT", 0.1)
    monkeypatch.setitem(forked._servers, ("torch", 0), (ours, silent))
    with theirs, pytest.raises(AssertionError, match="does not answer"):
        run("import torch", 1)
    assert silent.returncode == -signal.SIGKILL
    assert ("torch", 0) not in forked._servers
    monkeypatch.undo()
    assert run("import torch", 1)[0].returncode == 0
