"""The launch without MPI: ranks are processes on this host that meet at the launcher's socket."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shlex
import socket
import subprocess
from collections.abc import Iterator, Mapping

from . import arrivals
from .endings import Endings
from .environment import without_identity
from .errors import LaunchError
from .failure import Failure
from .job import Job
from .losses import Losses
from .output import RankOutput, ended_by, ended_well
from .placement import identity, place
from .store.server import STORE_VARIABLE, Store, open_local
from .supervised_run import SupervisedRun
from .supervisor import Child, Supervisor

# Seconds, after the first failure, for the other ranks to notice it and report their own errors.
MOMENT = 2.0


def rank_variables(rank: int, job: Job, rendezvous: str) -> dict[str, str]:
    """Variables with the rank's identity, for a job on this host, and the rendezvous."""
    return {**job.told(identity(place(job.ranks, ()), rank)), "RUEDA_RENDEZVOUS": rendezvous}


def new_rendezvous() -> str:
    """The address of an abstract Unix socket that no other job uses. It needs no file, so leaves none behind."""
    return f"unix:@rueda-{secrets.token_hex(16)}"


def new_secret() -> str:
    """A secret that the ranks prove to each other to know. It appears only in their environment."""
    return secrets.token_hex(32)


def dry_run(job: Job) -> list[str]:
    """One command line per rank, without the job's secret, which must not appear in any."""
    rendezvous = new_rendezvous()
    return [line_of(job, rank_variables(rank, job, rendezvous)) for rank in range(job.ranks)]


def line_of(job: Job, variables: Mapping[str, str]) -> str:
    """The command line of a rank with these `variables`, for people to read."""
    settings = [f"{name}={value}" for name, value in {**job.settings, **variables}.items()]
    return shlex.join(["env", *settings, *job.command])


class BuiltinRun(SupervisedRun):
    """One run of a job on this host."""

    def __init__(self, job: Job, output: RankOutput, grace: float, relay: int) -> None:
        """`relay`: the result of guardian.guard()."""
        super().__init__(output, grace, relay)
        self._job = job
        self._failures: list[Failure] = []
        self._losses = Losses(job.ranks, {**os.environ, **job.settings})
        self._endings = Endings()
        self._store: Store | None = None
        self._borne: dict[int, Failure] = {}  # lost ranks without which the job goes on
        self._cannot_form = False  # the first world, because a rank has ended
        # By host and process ID: ranks that do not answer.
        self._silent: set[tuple[str, int]] = set()

    def _has_failed(self) -> bool:
        return bool(self._failures)

    def _verdict(self, supervisor: Supervisor) -> tuple[int, str]:
        if supervisor.interrupted_by is not None and not self._failures:
            return ended_by(supervisor.interrupted_by, supervisor.is_abandoned)
        if self._failures:
            failure = self._output.watch.first_cause(self._failures)
            return failure.exit_code, self._output.watch.explain(failure)
        if self._absence:
            return 1, self._absence
        return ended_well(self._output)

    async def _run_ranks(self, supervisor: Supervisor) -> None:
        async with self._arrivals_of_ranks(supervisor, self._endings.accept) as come:
            base = {**without_identity(os.environ), **self._job.settings}
            rendezvous = new_rendezvous()
            with self._serve(supervisor, rendezvous) as meeting:
                for rank in range(self._job.ranks):
                    variables = {**meeting, **rank_variables(rank, self._job, rendezvous)}
                    variables[arrivals.VARIABLE] = come.address
                    self._spawn(supervisor, come, rank, {**base, **variables}, self._job.ranks)
                    await supervisor.give_way()
                    if supervisor.ending:
                        break
                await supervisor.wait()
            self._endings.close()

    @contextlib.contextmanager
    def _serve(self, supervisor: Supervisor, rendezvous: str) -> Iterator[dict[str, str]]:
        """Serves the rendezvous. Yields the variables for the ranks."""
        secret = new_secret()
        self._store = Store(
            open_local(rendezvous),
            self._job.ranks,
            secret,
            supervisor.until_ending(self._output.say),
            lambda rank: self._miss(supervisor, rank),
        )
        with contextlib.closing(self._store):
            yield {"RUEDA_SECRET": secret, STORE_VARIABLE: rendezvous}

    def _miss(self, supervisor: Supervisor, rank: int) -> None:
        """The first world cannot form because this rank has ended, perhaps well. So none of the others can go on."""
        self._cannot_form = True
        how = self._borne.pop(rank, None)
        if how is not None and not supervisor.ending and not self._failures:
            supervisor.end_after_moment(min(MOMENT, self._grace))
            self._failures.append(how)

    def _is_certain(self, rank: int) -> bool:
        """Whether, as far as can be foreseen, the job goes on without a rank whose loss it tolerates."""
        return not self._output.watch.is_consequence(rank)  # of a loss that is not known yet

    def _is_missed(self, rank: int) -> bool:
        """Whether the first world cannot form without this rank, or cannot form in any case."""
        return self._cannot_form or (self._store is not None and self._store.is_needed(rank))

    def _rank_has_ended(
        self, supervisor: Supervisor, come: arrivals.Arrivals, how: Failure
    ) -> None:
        if supervisor.ending:
            return
        if come.have_met():
            self._note_met()
        if self._ended_well(how):
            self._losses.ended_well()
            if how.rank < self._job.ranks:
                come.leave(how.rank)
            return
        if not self._failures and self._bears(how):
            self._borne[how.rank] = how
            return
        if not self._failures:
            supervisor.end_after_moment(min(MOMENT, self._grace))
        self._failures.append(how)

    def _note_met(self) -> None:
        """All ranks have formed a world: those that end well from now on have done their work."""
        self._losses.have_met()

    def _ended_well(self, how: Failure) -> bool:
        """Whether the process has completed its work."""
        return how.status == 0

    def _arrivals_of_ranks(
        self, supervisor: Supervisor, on_session: arrivals.OnSession
    ) -> arrivals.LocalArrivals:
        def on_silent(host: str, process_id: int) -> None:
            self._end_silent(supervisor, host, process_id)

        return self._arrivals(self._job.ranks, supervisor, on_session, on_silent)

    def _end_silent(self, supervisor: Supervisor, host: str, process_id: int) -> None:
        """Ends a rank that did not answer: the others have gone on without it. Several of them report it."""
        if not supervisor.ending and (host, process_id) not in self._silent:
            self._silent.add((host, process_id))
            self._end_process(supervisor, host, process_id)

    def _end_process(self, supervisor: Supervisor, host: str, process_id: int) -> None:
        """Ends a process of this job if it does not end soon."""
        child = supervisor.find(process_id) if host == socket.gethostname() else None
        if child is not None:
            child.end_silent(self._grace, self._output.say)

    def _bears(self, how: Failure) -> bool:
        """Whether the job goes on without a failed rank. If so, prints that."""
        if self._is_missed(how.rank) or not self._losses.bears(how):
            return False
        self._output.say(self._losses.describe(how, self._is_certain(how.rank)))
        return True

    def _spawn(
        self,
        supervisor: Supervisor,
        come: arrivals.Arrivals,
        rank: int,
        environment: dict[str, str],
        wanted: int,
    ) -> Child:
        """Starts one of `wanted` ranks. Raises LaunchError if the system refuses."""

        def on_exit(status: int) -> None:
            how = Failure(rank, status, socket.gethostname(), cause=child.cause)
            self._endings.note(child.process.pid, how)
            self._rank_has_ended(supervisor, come, how)
            if status != 0 and not (self._failures or supervisor.ending):  # the job goes on
                child.end_rest(self._grace)
            if self._store is not None and rank < self._job.ranks:
                self._store.lose(rank, how.describe_status())

        try:
            child = supervisor.spawn(
                self._job.command,
                environment,
                lambda stream, chunk: self._output.write(rank, stream, chunk),
                on_exit,
                # As under mpirun, rank 0 gets the launcher's piped input.
                stdin=None if rank == 0 and not os.isatty(0) else subprocess.DEVNULL,
            )
        except OSError as error:
            raise LaunchError(why_not_started(self._job.command[0], rank, wanted, error)) from error
        return child


def why_not_started(program: str, started: int, wanted: int, error: OSError) -> str:
    """A sentence that explains the system's error when a rank could not be started on this host."""
    if error.errno == errno.ENOEXEC:
        return (
            f"'{program}' is neither a program nor a script that begins with '#!': name its "
            f"interpreter, as in 'rueda run … bash {program}', or add '#!/bin/bash' as its first line"
        )
    if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return (
            f"only {started} of {wanted} ranks could be started on this host: {error.strerror}; "
            "start fewer ranks or raise the limits (ulimit -a)"
        )
    if error.errno == errno.ENOENT and os.path.exists(program):
        return f"cannot run '{program}': the interpreter that it names after '#!' is missing"
    return f"cannot run '{program}': {error.strerror}"
