"""Ranks that are forked are to be like those that Python starts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from forked import ForkedRank
from launching import Job, run

pytest.importorskip("torch")

WHO = "import os, sys; print(os.getppid(), os.getsid(0) == os.getpid(), hash('text'), sys.argv, os.getcwd())"


def test_children_of_the_tests_with_sessions_arguments_and_hashes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests of this process may have compiled before, which leaves this behind.
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
        ("raise ValueError('what is wrong')", 1, "ValueError: what is wrong"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT, "Interrupt"),
    ):
        (ended,) = run(f"import os, signal, sys, time, torch\n{text}", 1)
        assert ended.returncode == expected, ended
        assert written in ended.output, ended


def test_waiting_for_one_has_a_limit() -> None:
    with Job("import time, torch; print('here'); time.sleep(60)", 1) as job:
        job.wait_for_output(0, "here")
        with pytest.raises(subprocess.TimeoutExpired):
            job.ranks[0].wait(0)
        assert job.ranks[0].poll() is None
        job.ranks[0].kill()
        assert job.ranks[0].wait(60) == -signal.SIGKILL


def test_others_are_started_as_usual() -> None:
    """Those without torch, and those that are told what Python or OpenMP look at when they begin."""
    for program, extra in (
        ("import sys; assert 'torch' not in sys.modules", {}),
        ("import torch; assert torch.get_num_threads() == 2", {"OMP_NUM_THREADS": "2"}),
    ):
        with Job(program, 1, extra=extra) as job:
            assert isinstance(job.ranks[0], subprocess.Popen)
            assert job.wait()[0].returncode == 0, job.report()
