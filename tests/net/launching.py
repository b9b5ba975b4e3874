"""Runs `rueda run` on a host of a lab and checks which processes are left on all hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rueda_command import LAUNCHER, Ran, launcher_environment

from .lab import Lab, namespaces

# Each rank writes its number to a file, so a test knows when all have started.
PREAMBLE = """
import os, pathlib, signal, subprocess, sys, time
rank, size = int(os.environ["RUEDA_RANK"]), int(os.environ["RUEDA_SIZE"])
def mark(name):
    pathlib.Path(f"{name}.{rank}").touch()
def wait_for(name, count):
    deadline = time.monotonic() + 60
    while len(list(pathlib.Path().glob(f"{name}.*"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
mark("started")
wait_for("started", size)
"""


class Launcher:
    """Starts jobs on hosts of the lab, in one folder."""

    def __init__(self, lab: Lab, folder: Path, agent: Sequence[str]) -> None:
        """`agent`: the command that reaches other hosts."""
        self.lab = lab
        self.folder = folder
        self.agent = " ".join(agent)

    def line(self, *arguments: str, on: str = "h0") -> list[str]:
        """Returns the command line of a job that starts on host `on`."""
        run = [*LAUNCHER, "run", "--ssh", self.agent, "--grace", "1", *arguments]
        return self.lab.inside(on, *run)

    def program(self, text: str) -> list[str]:
        """Returns the command of ranks that run `text` once all have started."""
        (self.folder / "program.py").write_text(PREAMBLE + textwrap.dedent(text))
        return ["python3", "program.py"]

    def run(self, *arguments: str, on: str = "h0", stdin: str = "", **variables: str) -> Ran:
        """Runs a job to completion."""
        done = subprocess.run(
            self.line(*arguments, on=on),
            env={**job_environment(), **variables},
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Starts a job; kills it at the end if it still runs."""
        process = subprocess.Popen(
            self.line(*arguments),
            env=job_environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    @contextmanager
    def running(self, *arguments: str, ranks: int = 4) -> Iterator[subprocess.Popen[str]]:
        """Starts a job and waits until its ranks have marked `ready`."""
        with self.started(*arguments) as process:
            self.wait_for("ready", ranks, process)
            yield process

    def wait_for(self, name: str, count: int, process: subprocess.Popen[str]) -> None:
        """Waits until `count` ranks have marked `name`."""
        deadline = time.monotonic() + 60
        while len(list(self.folder.glob(f"{name}.*"))) < count:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"the ranks have not marked '{name}'"
            time.sleep(0.01)

    def processes(self, host: str) -> dict[int, str]:
        """Returns the processes of a host except sshd, with their command lines."""
        found = {}
        for process in namespaces.processes_of(self.lab.namespace(host)):
            try:
                line = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if line and "sshd" not in line:
                found[process] = line
        return found

    def kill_all(self, host: str) -> None:
        """Kills a host's launcher and ranks at once, as when the machine fails.

        All are stopped before the first one is killed, since none may notice, and report, the death of another. The
        launcher's processes are killed first, each before the one that started it: if a death leaves a process group
        orphaned, the kernel lets those that are stopped in it go on.
        """
        stopped: set[int] = set()
        while new := self.processes(host).keys() - stopped:
            for process in new:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
            deadline = time.monotonic() + 60
            while runs := [process for process in new if not _is_stopped(process)]:
                assert time.monotonic() < deadline, runs
                time.sleep(0.001)
            stopped |= new
        parents = {process: int(_stat(process)[1]) for process in stopped}
        starters = stopped & set(parents.values())

        def depth(process: int) -> int:
            return 1 + depth(parents[process]) if process in parents else 0

        for process in [*sorted(starters, key=depth, reverse=True), *(stopped - starters)]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def find(self, host: str, program: str) -> list[int]:
        """Returns a host's processes whose command line begins with `program`, oldest first."""
        found = [p for p, line in self.processes(host).items() if line.startswith(program)]
        return sorted(found, key=_begin)

    def wait_until_gone(self) -> None:
        """Waits until nothing runs on any host."""
        deadline = time.monotonic() + 60
        while left := {h: p for h in self.lab.names if (p := self.processes(h))}:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


def _is_stopped(process: int) -> bool:
    """Whether a process is stopped or has ended."""
    return _stat(process)[0] in "TZX"


def _begin(process: int) -> tuple[int, int]:
    """Orders processes by when they were started. Numbers alone do not: they begin again at some time."""
    return int(_stat(process)[19]), process


def _stat(process: int) -> list[str]:
    """What the kernel tells of a process, from its state on; of one that is gone, that it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", *["0"] * 49]


def job_environment() -> dict[str, str]:
    """Returns the environment of a launcher in a lab."""
    return {**launcher_environment(), "OMP_NUM_THREADS": "1"}  # or the launcher prints a hint
