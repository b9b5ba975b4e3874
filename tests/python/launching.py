"""Runs Python programs on several ranks, each a process on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from forked import Rank, line_to_launch, start

PARALLEL = Path(__file__).resolve().parents[1] / "parallel" / "python"
# Variables left by another launcher must not affect how the ranks find each other.
LAUNCHERS = ("RUEDA_", "HOROVOD_", "OMPI_", "PMIX_", "PRTE_", "PMI_", "TORCHELASTIC_", "SLURM_")


@dataclass
class Ended:
    """How a rank, or mpirun with all its ranks, ended."""

    returncode: int
    output: str


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment without launchers' variables, one thread per rank."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(extra or {})}


def command(
    program: str | Path, arguments: Sequence[str] = (), python: str | Path = sys.executable
) -> list[str]:
    """Returns the command line for a script (a path) or a program (text)."""
    if isinstance(program, Path):
        return [str(python), str(program), *arguments]
    return [str(python), "-c", textwrap.dedent(program), *arguments]


def end_of(line: Sequence[str], extra: dict[str, str] | None = None, limit: float = 60) -> Ended:
    """Runs a line made by ``command()`` to its end; kills its session at the limit."""
    with tempfile.TemporaryFile() as file:
        process = start(line, 0, file, environment(extra))
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(
                f"{line} has not ended within {limit} s\n{_all_of(file)}"
            ) from None
        return Ended(process.returncode, _all_of(file))


def alone(program: str, extra: dict[str, str] | None = None, limit: float = 60) -> Ended:
    """Runs one process without a launcher."""
    return end_of(command(program), extra, limit)


def _all_of(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")


class Job:
    """Ranks that meet at a rendezvous of their own. Ends them on exit from the context."""

    def __init__(
        self,
        program: str | Path,
        size: int,
        arguments: Sequence[str] = (),
        extra: dict[str, str] | None = None,
        python: str | Path = sys.executable,
        folder: Path | None = None,
    ) -> None:
        # A shell that runs the tests in the background ignores SIGINT, and the ranks would inherit
        # that.
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._stack = ExitStack()
        address = f"unix:@rueda-test-{uuid.uuid4().hex}"
        self._files = []
        self.ranks: list[Rank] = []
        for rank in range(size):
            file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - entered
            world = {
                "RUEDA_RANK": str(rank),
                "RUEDA_SIZE": str(size),
                "RUEDA_RENDEZVOUS": address,
            }
            self._files.append(file)
            variables = environment({**world, **(extra or {})})
            line = command(program, arguments, python)
            self.ranks.append(start(line, rank, file, variables, folder))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._stack.close()

    def output(self, rank: int) -> str:
        """The rank's standard output and error so far."""
        return _all_of(self._files[rank])

    def wait_for_output(self, rank: int, text: str, limit: float = 60) -> None:
        """Waits until the rank has written ``text``."""
        deadline = time.monotonic() + limit
        while text not in self.output(rank):
            if time.monotonic() > deadline or self.ranks[rank].poll() is not None:
                raise AssertionError(f"rank {rank} did not write {text!r}\n{self.report()}")
            time.sleep(0.01)

    def wait(self, limit: float = 120) -> list[Ended]:
        """Waits until all ranks have ended."""
        deadline = time.monotonic() + limit
        for rank, process in enumerate(self.ranks):
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    f"rank {rank} has not ended within {limit} s\n{self.report()}"
                ) from None
        return [
            Ended(process.returncode, self.output(rank)) for rank, process in enumerate(self.ranks)
        ]

    def report(self) -> str:
        """The output and exit status of all ranks."""
        return "\n".join(
            f"--- rank {rank}, exit status {process.poll()} ---\n{self.output(rank)}"
            for rank, process in enumerate(self.ranks)
        )


def run(
    program: str | Path,
    size: int,
    arguments: Sequence[str] = (),
    extra: dict[str, str] | None = None,
    limit: float = 120,
) -> list[Ended]:
    """Runs ``size`` ranks to their end, successful or not."""
    with Job(program, size, arguments, extra) as job:
        return job.wait(limit)


def check(
    program: str | Path,
    size: int,
    arguments: Sequence[str] = (),
    extra: dict[str, str] | None = None,
    limit: float = 240,
) -> list[Ended]:
    """Runs ``size`` ranks; all must succeed."""
    with Job(program, size, arguments, extra) as job:
        ended = job.wait(limit)
        assert all(rank.returncode == 0 for rank in ended), job.report()
        return ended


def find_mpirun() -> str | None:
    """Returns the mpirun of this Python's environment, or else the one on the PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


def run_to_end(line: Sequence[str], extra: dict[str, str] | None, limit: float, what: str) -> Ended:
    """Runs a launcher, called ``what`` in errors, in a session of its own."""
    # Ranks share the launcher's output. Each writes in one piece, when it flushes or ends.
    with subprocess.Popen(
        line,
        env=environment({"PYTHONUNBUFFERED": "", **(extra or {})}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # the launcher ends its ranks
            output, _ = process.communicate(timeout=30)
            raise AssertionError(
                f"{what} has not ended within {limit} s\n{output.decode(errors='replace')}"
            ) from None
    return Ended(process.returncode, output.decode(errors="replace"))


def mpirun_line(size: int, line: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """Returns mpirun's command line for ``size`` ranks that run ``line``."""
    mpirun = find_mpirun()
    assert mpirun is not None
    begin = [
        mpirun,
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-np",
        str(size),
    ]
    return [*begin, *options, *line]


def run_under_mpirun(
    program: str | Path,
    size: int,
    arguments: Sequence[str] = (),
    extra: dict[str, str] | None = None,
    options: Sequence[str] = (),
    limit: float = 240,
) -> Ended:
    """Runs ``size`` ranks under mpirun."""
    rank = line_to_launch(command(program, arguments), environment(extra))
    line = mpirun_line(size, rank, options)
    return run_to_end(line, extra, limit, "mpirun")


def check_under_mpirun(
    program: str | Path,
    size: int,
    arguments: Sequence[str] = (),
    extra: dict[str, str] | None = None,
) -> Ended:
    """Runs ``size`` ranks under mpirun; all must succeed."""
    ended = run_under_mpirun(program, size, arguments, extra)
    assert ended.returncode == 0, ended.output
    return ended
