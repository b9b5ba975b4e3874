"""Runs a job under mpirun and makes out of its output who failed and why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from .environment import without_identity
from .errors import LaunchError
from .job import Job
from .mpirun import is_batch_job
from .mpirun_output import MpirunOutput
from .orphans import INTERVAL, OrphanWatch
from .output import RankOutput, Stream, write_terminal
from .supervisor import Supervisor

# mpirun kills the other ranks by itself once one has failed; this is for when it does not manage.
_MPIRUN_KILLS_WITHIN = 15.0


class MpirunRun:
    """One run of a job under mpirun."""

    def __init__(
        self, argv: Sequence[str], job: Job, separator: bytes, output: RankOutput, grace: float
    ) -> None:
        self._argv = argv
        self._only_host = "" if is_batch_job() or not job.is_local else socket.gethostname()
        self._ranks_here = job.ranks if self._only_host else 0
        self._output = output
        self._streams = MpirunOutput(output, job.ranks, separator)
        self._grace = grace
        self._status = 0
        self._noticed = False

    async def run(self) -> tuple[int, str]:
        """Runs the job to its end; returns the exit code and, after a failure, what to say."""
        async with Supervisor(self._grace) as supervisor:
            try:
                mpirun = supervisor.spawn(
                    self._argv,
                    without_identity(os.environ),
                    lambda stream, chunk: self._take(supervisor, stream, chunk),
                    self._ended,
                    stdin=subprocess.DEVNULL if sys.stdin.isatty() else None,
                    death_signal=signal.SIGTERM,  # so that it ends its ranks
                )
            except OSError as error:
                raise LaunchError(f"cannot run '{self._argv[0]}': {error.strerror}") from error
            supervisor.every(INTERVAL, OrphanWatch(mpirun, self._ranks_here).look)
            await supervisor.wait()
        self._show(self._streams.finish())
        self._output.finish()
        if supervisor.interrupted_by is not None:
            number = supervisor.interrupted_by
            return 128 + number, f"ended by {number.name}; all ranks are gone"
        return self._verdict()

    def _ended(self, status: int) -> None:
        self._status = status

    def _take(self, supervisor: Supervisor, stream: Stream, chunk: bytes) -> None:
        self._show(self._streams.write(stream, chunk))
        if self._streams.failures and not self._noticed:
            self._noticed = True
            supervisor.end_after(_MPIRUN_KILLS_WITHIN)

    def _show(self, own: list[tuple[Stream, str]]) -> None:
        for stream, text in own:
            write_terminal(stream, text.encode())

    def _verdict(self) -> tuple[int, str]:
        code = 128 - self._status if self._status < 0 else self._status
        if code == 0:
            return 0, ""
        watch = self._output.watch
        if not self._streams.failures:
            return code, f"mpirun ended with exit code {code} without naming a rank"
        failure = self._streams.failures[0]
        # The rank that noticed another's end may well be the first to exit.
        culprit = watch.raised_on_its_own() if watch.is_consequence(failure.rank) else None
        if culprit is not None:
            failure = replace(failure, rank=culprit)
        elif failure.manner:
            failure = replace(failure, status=code)
        if not failure.host:
            failure = replace(failure, host=self._only_host)
        return code, watch.explain(failure)
