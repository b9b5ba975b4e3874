"""The environments of engines, made by `make engines`, and ranks that run in them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launching import Ended, Job, environment
from one_run import OneRun

ROOT = Path(__file__).resolve().parents[2]
# Modules imported by scripts of several engines and by ranks, such as tasks of Spark or actors of
# Ray.
ON_RANKS = ROOT / "tests" / "engines" / "on_ranks"
# Hanging ranks must fail before the test times out.
STALLS = {"RUEDA_STALL_WARNING": "10", "RUEDA_STALL_ERROR": "30"}


@dataclass(frozen=True)
class Engine:
    """An engine with its own Python environment, which includes Rueda."""

    name: str
    python: Path

    def run(
        self,
        script: Path,
        size: int,
        arguments: Sequence[str] = (),
        extra: dict[str, str] | None = None,
        limit: float = 120,
        folder: Path | None = None,
    ) -> list[str]:
        """Runs the script on ``size`` ranks, which must succeed; returns each rank's output.

        ``folder``: the ranks' working directory; by default that of the tests.
        """
        with Job(script, size, arguments, variables_of(extra), self.python, folder) as job:
            ended = job.wait(limit)
            assert all(rank.returncode == 0 for rank in ended), job.report()
            return [rank.output for rank in ended]

    def run_checks(
        self,
        script: Path,
        size: int,
        arguments: Sequence[str] = (),
        extra: dict[str, str] | None = None,
        speakers: int | None = None,
        killed: int | None = None,
    ) -> OneRun:
        """Runs a script whose first ``speakers`` ranks (default: all) print the checks that passed.

        ``killed``: the rank that the last check kills.
        """
        with Job(script, size, arguments, variables_of(extra), self.python) as job:
            ended = job.wait(240)
            outputs = [rank.output for rank in ended[:speakers]]
            expected = [-signal.SIGKILL if rank == killed else 0 for rank in range(size)]
            return OneRun([rank.returncode for rank in ended] == expected, outputs)

    def run_alone(
        self,
        script: Path,
        folder: Path,
        extra: dict[str, str] | None = None,
        limit: float = 240,
    ) -> Ended:
        """Runs one process that starts a cluster in ``folder``; returns once both have ended."""
        with subprocess.Popen(
            [self.python, script, folder],
            env=environment(variables_of(extra)),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        return Ended(process.returncode, output)


def variables_of(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Returns ``extra`` plus a PYTHONPATH that includes ``on_ranks``."""
    given = {**os.environ, **(extra or {})}.get("PYTHONPATH")
    paths = [str(ON_RANKS), *filter(None, [given])]
    return {**(extra or {}), "PYTHONPATH": os.pathsep.join(paths)}


def find(name: str) -> Engine | str:
    """Returns the engine, or why it cannot be used here."""
    requirements = ROOT / "tests" / "engines" / name / "requirements.txt"
    assert requirements.exists(), f"there is no {requirements}"
    python = ROOT / ".engines" / name / "bin" / "python"
    if not python.exists():
        return f"there is no .engines/{name}: make engines ENGINES={name}"
    # Its links lead into the test environment, which may have been removed.
    tried = subprocess.run(
        [python, "-c", "import rueda; rueda.init"],
        env={k: v for k, v in os.environ.items() if k != "PYTHONHOME"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if tried.returncode:
        return f".engines/{name} is out of order, make engines repairs it: {tried.stderr.strip()}"
    return Engine(name, python)
