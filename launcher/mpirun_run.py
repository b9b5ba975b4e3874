"""Runs a job under mpirun, and determines from its output which rank failed and why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from .absentees import AbsenteeWatch
from .arrivals import VARIABLE, LocalArrivals
from .builtin import MOMENT
from .environment import without_identity
from .errors import LaunchError
from .failure import Failure
from .job import Job
from .mpirun import changed_variables, is_on_this_host
from .mpirun_ends import RankEnds
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
        may_lose_ranks: bool = False,
    ) -> None:
        """`relay`: the result of guardian.guard(). `may_lose_ranks`: see mpirun.may_lose_ranks().

        Raises LaunchError for an impossible RUEDA_MIN_NP.
        """
        super().__init__(output, grace, relay)
        self._argv = argv
        self._changed_variables = changed_variables(job)
        self._recovers = job.recovers
        self._only_host = socket.gethostname() if is_on_this_host(job) else ""
        self._ranks = job.ranks
        self._ranks_here = job.ranks if self._only_host else 0
        self._separator = separator
        self._streams = MpirunOutput(output, job.ranks, separator)
        self._ends: RankEnds | None = None  # if mpirun's own exit code does not tell
        if may_lose_ranks:
            variables = {**os.environ, **job.settings}
            self._ends = RankEnds(job, variables, sees_arrivals=self._ranks_here > 0)
        self._status = 0
        self._noticed = False
        self._ranks_have_started = False  # as far as is known at the end

    def _has_failed(self) -> bool:
        return bool(self._streams.failures) or self._is_lost

    @property
    def _is_lost(self) -> bool:
        """Whether the job cannot go on without the ranks that have failed, although mpirun lets it."""
        return self._ends is not None and bool(self._ends.failures)

    def _verdict(self, supervisor: Supervisor) -> tuple[int, str]:
        if supervisor.interrupted_by is not None and not (self._recovers and self._is_lost):
            return ended_by(supervisor.interrupted_by, supervisor.is_abandoned)
        if self._absence and not self._has_failed():
            return 1, self._absence
        return self._outcome(supervisor)

    async def _run_ranks(self, supervisor: Supervisor) -> None:
        async with self._arrivals(self._ranks, supervisor) as come:
            self._watch_ends(supervisor, come)
            try:
                mpirun = supervisor.spawn(
                    self._argv,
                    {
                        **without_identity(os.environ),
                        **self._changed_variables,
                        VARIABLE: come.address,
                    },
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
            self._ranks_have_started = self._streams.ranks_have_written or come.have_heard()
        if self._ends is not None and self._status == 0 and not supervisor.ending:
            self._ends.note_silent_ends(self._only_host)

    def _watch_ends(self, supervisor: Supervisor, come: LocalArrivals) -> None:
        """Watches how ranks end, if mpirun lets the job go on without them."""
        ends = self._ends
        if ends is None:
            return

        def look() -> None:
            if come.anybody_has_come and not come.have_met():
                ends.note_waiting()
                self._end_if_lost(supervisor)

        def on_status(rank: int, status: int) -> None:
            self._rank_has_ended(supervisor, come, ends, rank, status)

        self._streams = MpirunOutput(self._output, self._ranks, self._separator, on_status)
        supervisor.every(INTERVAL, look)

    def _rank_has_ended(
        self, supervisor: Supervisor, come: LocalArrivals, ends: RankEnds, rank: int, status: int
    ) -> None:
        if supervisor.ending or self._streams.failures:  # mpirun may have ended it
            return
        if come.have_met():
            ends.have_met()
        if status == 0 and self._ranks_here:
            come.leave(rank)
        was_killed = self._only_host and status == -signal.SIGKILL
        cause = supervisor.oom_kills.explain() if was_killed else ""
        how = Failure(rank, status, self._only_host, cause=cause)
        sentence = ends.note(how, is_certain=not self._output.watch.is_consequence(rank))
        if sentence:
            self._output.say(sentence)
        self._end_if_lost(supervisor)

    def _end_if_lost(self, supervisor: Supervisor) -> None:
        """Ends the ranks that are left if too few are."""
        if self._is_lost and self._recovers and not self._noticed:
            self._noticed = True
            supervisor.end_after_moment(min(MOMENT, self._grace))

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

    def _reported(self, code: int) -> list[Failure]:
        """The failures that end the job by what the ranks themselves have reported. `code`: mpirun's exit code."""
        if self._ends is None:
            return []
        if self._is_lost and (self._recovers or code == 0):
            return self._ends.failures
        return self._ends.ended_with(code) if code != 0 and not self._streams.failures else []

    def _outcome(self, supervisor: Supervisor) -> tuple[int, str]:
        code = 128 - self._status if self._status < 0 else self._status
        watch = self._output.watch
        if reported := self._reported(code):
            failure = watch.first_cause(reported)
            return failure.exit_code, watch.explain(failure)
        if code == 0:
            return ended_well(self._output)
        if not self._streams.failures:
            raised = watch.raised()
            if raised is None:
                return code, self._explain_unnamed(code)
            return code, watch.explain(Failure(raised, code, self._only_host))
        failure = first_failure(self._streams.failures, watch, code)
        if not failure.host:
            failure = replace(failure, host=self._only_host)
        if self._only_host and failure.status == -signal.SIGKILL:
            failure = replace(failure, cause=supervisor.oom_kills.explain())
        return self._code_of(failure, code), watch.explain(failure)

    def _code_of(self, failure: Failure, code: int) -> int:
        """The job's exit code. `code`: mpirun's own, which may be that of a rank that failed later."""
        named = {reported.rank for reported in self._streams.failures}
        told = self._output.watch.told_status(failure.rank)
        return code if failure.rank in named or told is None else failure.exit_code

    def _explain_unnamed(self, code: int) -> str:
        """The last line if mpirun has failed, and said of no rank that it was the cause."""
        words = f"mpirun ended with exit code {code} without naming a rank"
        if self._ranks_have_started:
            return f"{words}, after ranks had started: see what they and mpirun have printed above"
        if self._only_host:
            return f"{words}; if it cannot start ranks here, --no-mpi starts them without it"
        return words
