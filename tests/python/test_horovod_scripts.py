"""Horovod scripts that know nothing of Rueda, under `rueda run --horovod`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked import launched
from launching import command, environment, find_mpirun

pytest.importorskip("torch")

SCRIPTS = Path(__file__).resolve().parents[1] / "horovod_scripts"
needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")


def run(
    script: str,
    ranks: int,
    *arguments: str,
    flags: tuple[str, ...] = ("--gloo",),
    as_users_do: bool = False,
) -> str:
    """The output of the job, which must succeed. ``as_users_do``: each rank imports torch."""
    line = (command if as_users_do else launched)(SCRIPTS / script, arguments)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "rueda", "run", "--horovod", "--no-prefix"),
            *("-np", str(ranks), *flags, *line),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        (1, []),
        (4, []),
        (3, ["--use-adasum"]),
        (2, ["--fp16-allreduce", "--gradient-predivide-factor", "2"]),
    ],
)
def test_cnn(ranks: int, arguments: list[str]) -> None:
    output = run("cnn.py", ranks, *arguments, as_users_do=ranks == 2)
    match = re.search(r"accuracy ([\d.]+) on (\d) ranks", output)
    assert match, output
    assert int(match[2]) == ranks
    assert float(match[1]) > 0.9


def test_synthetic_benchmark() -> None:
    flags = ("--gloo", "--fusion-threshold-mb", "16", "--cycle-time-ms", "1", "--verbose")
    output = run("synthetic_benchmark.py", 2, flags=flags)
    assert re.search(r"total on 2 ranks: [\d.]+", output), output


@needs_mpirun
def test_synthetic_benchmark_under_mpirun() -> None:
    flags = ("--mpi", "--oversubscribe")
    output = run("synthetic_benchmark.py", 3, flags=flags, as_users_do=True)
    assert "total on 3 ranks" in output


def test_elastic() -> None:
    """Failures and resets do not change the result."""
    results = {}
    for failures in ((), ("all", "one", "hosts")):
        output = run("elastic.py", 3, *failures)
        match = re.search(r"resets (\d) (batches \d+ sum [-\d.]+)", output)
        assert match, output
        results[int(match[1])] = match[2]
    assert list(results) == [0, 3]
    assert results[0] == results[3]


def test_elastic_does_not_retry_what_would_only_come_back() -> None:
    program = """
import horovod.torch as hvd
import torch
hvd.init()
calls = []

@hvd.elastic.run
def train(state):
    calls.append(1)
    hvd.allreduce(torch.ones(1 + hvd.rank()), name="shape")

try:
    train(hvd.elastic.ObjectState(epoch=0))
except hvd.HorovodInternalError as error:
    assert "Mismatched tensor shapes" in str(error), error
    print("calls", len(calls))
"""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "rueda", "run", "--horovod", "--no-prefix", "--gloo"),
            *("-np", "2", sys.executable, "-c", program),
        ],
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["calls", "1"] * 2
