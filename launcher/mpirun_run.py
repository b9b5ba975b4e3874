"""Runs a job under mpirun, and determines from its output which rank failed and why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from .absentees import AbsenteeWatch
from .arrivals import VARIABLE
from .environment import without_identity
from .errors import LaunchError
from .failure import Failure
from .job import Job
from .mpirun import is_batch_job
from .mpirun_output import MpirunOutput, first_failure
from .orphans import INTERVAL, OrphanWatch
from .output import RankOutput, Stream, ended_by, ended_well
from .supervised_run import SupervisedRun
from .supervisor import Supervisor

# mpirun kills the other ranks once one has failed. If it has not done so after these seconds, the launcher does.
_MPIRUN_KILLS_WITHIN = 15.0


class MpirunRun(SupervisedRun):
    """One run of a job under mpirun."""

    def __init__(
        self,
        argv: Sequence[str],
        job: Job,
        separator: bytes,
        output: RankOutput,
        grace: float,
        relay: int,
    ) -> None:
        """`relay`: the result of guardian.guard()."""
        super().__init__(output, grace, relay)
        self._argv = argv
        self._only_host = "" if is_batch_job() or not job.is_local else socket.gethostname()
        self._ranks = job.ranks
        self._ranks_here = job.ranks if self._only_host else 0
        self._streams = MpirunOutput(output, job.ranks, separator)
        self._status = 0
        self._noticed = False

    def _has_failed(self) -> bool:
        return bool(self._streams.failures)

    def _verdict(self, supervisor: Supervisor) -> tuple[int, str]:
        if supervisor.interrupted_by is not None:
            return ended_by(supervisor.interrupted_by)
        if self._absence and not self._streams.failures:
            return 1, self._absence
        return self._outcome(supervisor)

    async def _run_ranks(self, supervisor: Supervisor) -> None:
        async with self._arrivals(self._ranks, supervisor) as come:
            try:
                mpirun = supervisor.spawn(
                    self._argv,
                    {**without_identity(os.environ), VARIABLE: come.address},
                    lambda stream, chunk: self._take(supervisor, stream, chunk),
                    self._ended,
                    stdin=subprocess.DEVNULL if os.isatty(0) else None,
                    death_signal=signal.SIGTERM,  # so that it ends its ranks
                )
            except OSError as error:
                raise LaunchError(f"cannot run '{self._argv[0]}': {error.strerror}") from error
            supervisor.every(INTERVAL, OrphanWatch(mpirun.process.pid, self._ranks_here).look)
            if self._ranks_here:
                watch = AbsenteeWatch(mpirun.process.pid, self._ranks_here, come)
                supervisor.every(INTERVAL, watch.look)
            await supervisor.wait()
        self._show(self._streams.finish())

    def _ended(self, status: int) -> None:
        self._status = status

    def _take(self, supervisor: Supervisor, stream: Stream, chunk: bytes) -> None:
        self._show(self._streams.write(stream, chunk))
        if self._streams.failures and not self._noticed:
            self._noticed = True
            supervisor.end_after(_MPIRUN_KILLS_WITHIN)

    def _show(self, own: list[tuple[Stream, str]]) -> None:
        for stream, text in own:
            self._output.show(stream, text.encode())

    def _outcome(self, supervisor: Supervisor) -> tuple[int, str]:
        code = 128 - self._status if self._status < 0 else self._status
        if code == 0:
            return ended_well(self._output)
        watch = self._output.watch
        if not self._streams.failures:
            raised = watch.raised()
            if raised is None:
                words = f"mpirun ended with exit code {code} without naming a rank"
                if self._only_host:
                    words += "; if it cannot start ranks here, --no-mpi starts them without it"
                return code, words
            return code, watch.explain(Failure(raised, code, self._only_host))
        failure = first_failure(self._streams.failures, watch, code)
        if not failure.host:
            failure = replace(failure, host=self._only_host)
        if self._only_host and failure.status == -signal.SIGKILL:
            failure = replace(failure, cause=supervisor.oom_kills.explain())
        return code, watch.explain(failure)
