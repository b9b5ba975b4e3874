"""Shared by the tests of the command `rueda`: ways to start it, and what it leaves behind."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rueda_command import Ran, run_rueda

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "python")]

Rueda = Callable[..., Ran]


@pytest.fixture
def rueda(tmp_path: Path) -> Rueda:
    """Runs `rueda ARGUMENTS` in an empty folder."""

    def run(*arguments: str, **variables: str) -> Ran:
        return run_rueda(tmp_path, arguments, variables, timeout=60)

    return run


def _launches() -> dict[str, list[str]]:
    """Returns flags for each way to start ranks: without MPI, and with each mpirun found here."""
    from rueda.launcher.mpirun import find_mpirun

    launches = {"builtin": ["--no-mpi"]}
    preferred = find_mpirun()
    if preferred is not None:
        launches["mpirun"] = ["--mpirun", preferred]
    if os.path.exists("/usr/bin/mpirun") and preferred != "/usr/bin/mpirun":
        launches["system-mpirun"] = ["--mpirun", "/usr/bin/mpirun"]
    return {name: ["run", *flags, "--grace", "0.5"] for name, flags in launches.items()}


_by_name = _launches()


@pytest.fixture(params=[name for name in _by_name if name != "system-mpirun"])
def launch(request: pytest.FixtureRequest) -> list[str]:
    """Flags that choose a way to start ranks."""
    return _by_name[request.param]


@pytest.fixture(params=_by_name)
def any_launch(request: pytest.FixtureRequest) -> list[str]:
    """Like `launch`, plus the system's mpirun: for tests that depend on mpirun's messages."""
    return _by_name[request.param]


PREAMBLE = """
import os, pathlib, signal, subprocess, sys, time
rank = int(os.environ.get("RUEDA_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
size = int(os.environ.get("RUEDA_SIZE") or os.environ["OMPI_COMM_WORLD_SIZE"])
pathlib.Path(f"pid.{rank}").write_text(str(os.getpid()))
def mark(name):
    pathlib.Path(f"{name}.{rank}").touch()
def wait_for(name, count):
    deadline = time.monotonic() + 60
    while len(list(pathlib.Path().glob(f"{name}.*"))) < count:
        assert time.monotonic() < deadline, name
        time.sleep(0.01)
def all_started():
    deadline = time.monotonic() + 30
    while len([p for p in pathlib.Path().glob("pid.*") if p.read_text()]) < size:
        assert time.monotonic() < deadline
        time.sleep(0.01)
all_started()
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Writes the program that the ranks run; it has `rank` and `size`."""

    def write(text: str) -> str:
        (tmp_path / "program.py").write_text(PREAMBLE + textwrap.dedent(text))
        return "program.py"

    return write


def has_ended(pid: int) -> bool:
    """Whether the process does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in {"Z", "X"}


@pytest.fixture
def no_survivors(tmp_path: Path) -> Iterator[None]:
    """Fails the test if a process whose number is in a file pid.* still runs."""
    yield
    files = list(tmp_path.glob("pid.*"))
    assert files, "no rank has started"
    for file in files:
        assert has_ended(int(file.read_text())), file.name
