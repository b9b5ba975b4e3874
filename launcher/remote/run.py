"""A job whose ranks run on several hosts without MPI."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..arrivals import Arrivals
from ..builtin import MOMENT, BuiltinRun, line_of, new_secret
from ..environment import THREADS, forwarded_by_default
from ..errors import LaunchError
from ..failure import Failure
from ..job import Job, job_folder
from ..output import RankOutput, Stream
from ..placement import HostShare, by_machine, identity, place
from ..store.server import STORE_VARIABLE
from ..supervisor import Supervisor
from ..version import installed_version
from . import address, ssh
from .connection import Connection
from .frames import Frame, Kind
from .host import BEATS_IN_SILENCE
from .host_job import HostJob
from .rank_input import PipedInput
from .reached_at import address_of
from .session_relay import EndingsForHost

_STREAMS: dict[Kind, Stream] = {Kind.OUT: "stdout", Kind.ERR: "stderr"}


# Seconds between checks for a signal to the launcher.
_LOOK = 0.1


class HostsFailed(LaunchError):
    """Hosts cannot run their part of a job, for a reason of their own."""

    def __init__(self, connections: Sequence[Connection], message: str) -> None:
        super().__init__(message)
        self.connections = list(connections)


@dataclass(frozen=True)
class Reach:
    """How hosts are reached."""

    agent: str  # ssh or a compatible program, with arguments
    start_timeout: float  # seconds within which all hosts must be ready
    silence: float  # seconds without a message after which a host is given up

    def command_line(self, share: HostShare, found: str | None) -> list[str]:
        """The command line that starts the process on a host. `found`: the host's address."""
        if share.host.is_local or address.is_own(found or ""):
            return ssh.command_here()
        words = ssh.agent_words(self.agent)
        return ssh.command_line(words, share.host.name, self.start_timeout)


def dry_run(job: Job, reach: Reach) -> list[str]:
    """Lines that show how each host is reached and what its ranks run, without the job's secret."""
    shares = place(job.ranks, job.hosts)
    lines = []
    for share in shares:
        line = reach.command_line(share, address.resolve(share.host.name))
        lines.append(f"# {share.host.name}: {' '.join(line)}")
        for rank in share.ranks:
            meeting = {"RUEDA_RENDEZVOUS": f"tcp:{shares[0].host.name}:PORT"}
            lines.append(line_of(job, {**job.told(identity(shares, rank)), **meeting}))
    return lines


class RemoteRun(BuiltinRun):
    """Starts a process on each host, which starts the ranks there."""

    def __init__(
        self, job: Job, reach: Reach, output: RankOutput, grace: float, relay: int
    ) -> None:
        """`relay`: the result of guardian.guard()."""
        super().__init__(job, output, grace, relay)
        self._reach = reach
        self._shares = place(job.ranks, job.hosts)
        self._connections: list[Connection] = []
        self._addresses: dict[str, str | None] = {}  # of hosts, from resolve()
        self._machines: dict[str, str] = {}  # of greeted hosts, from machine_identity()
        self._handlers: tuple[Callable[..., None], ...] = ()  # for each Connection
        self._changed = asyncio.Event()
        self._started = False
        self._refusal = ""
        self._meeting: dict[str, str] = {}  # where the ranks meet, and their secret
        self._lost: list[Connection] = []
        self._gone: set[int] = set()  # ranks
        self._failures_before_loss = 0
        self._input: PipedInput | None = None
        self._come: Arrivals | None = None

    def _has_failed(self) -> bool:
        return bool(self._failures or self._lost or self._refusal)

    def _verdict(self, supervisor: Supervisor) -> tuple[int, str]:
        if self._refusal and supervisor.interrupted_by is None:
            return 2, self._refusal
        if self._lost and supervisor.interrupted_by is None:
            before = self._failures[: self._failures_before_loss]
            if all(self._output.watch.is_consequence(failure.rank) for failure in before):
                return 1, self._lost[0].explain_loss()
        code, words = super()._verdict(supervisor)
        if self._lost and words:
            words += f"; but host '{self._lost[0].title}' was lost: {self._lost[0].lost}"
        return code, words

    def _is_certain(self, rank: int) -> bool:
        # The first host reports a moment later whether the first world can form without the rank.
        is_forming = self._come is not None and self._come.somebody_waits
        return super()._is_certain(rank) and not is_forming

    async def _run_ranks(self, supervisor: Supervisor) -> None:
        supervisor.start_writer(self._output.writer)  # because lines are printed before ranks exist
        come = self._come = Arrivals(
            self._job.ranks,
            lambda sentence: self._notice_absence(supervisor, sentence),
            lambda host, process_id: self._end_silent(supervisor, host, process_id),
        )

        def on_frame(connection: Connection, frame: Frame) -> None:
            self._take(supervisor, come, connection, frame)

        def on_lost(connection: Connection) -> None:
            self._lose(supervisor, connection)

        self._handlers = (on_frame, self._show, on_lost, self._changed.set)
        await self._find_addresses(supervisor, [share.host.name for share in self._shares])
        if supervisor.ending:
            await supervisor.wait()
            return
        for share in self._shares:
            self._connections.append(self._connection_to(share, *self._handlers))
        try:
            await self._start(supervisor)
        except LaunchError:
            supervisor.end_after(0)
            await supervisor.wait()
            raise
        await supervisor.wait()

    async def _find_addresses(self, supervisor: Supervisor, names: Sequence[str]) -> None:
        """Resolves hosts, while still handling signals. Call before _connection_to()."""
        others = [host.name for host in self._job.hosts if host.name not in self._addresses]
        found = asyncio.ensure_future(address.resolve_all([*names, *others]))
        try:
            while not (found.done() or supervisor.ending):
                await asyncio.wait({found}, timeout=_LOOK)
            if found.done():
                self._addresses.update(found.result())
        finally:
            found.cancel()

    def _connection_to(self, share: HostShare, *handlers: Callable[..., None]) -> Connection:
        """`handlers`: those of Connection."""
        return Connection(
            share, self._reach.command_line(share, self._addresses.get(share.host.name)), *handlers
        )

    def _meeting_for(self, connection: Connection, meeting: dict[str, str]) -> dict[str, str]:
        """What the host gets to know about the ranks' meeting point and secret."""
        return meeting

    async def _start(self, supervisor: Supervisor) -> None:
        """Starts the ranks once every host is ready. Raises LaunchError if one is not."""
        deadline = time.monotonic() + self._reach.start_timeout
        await self._make_ready(supervisor, deadline)
        if supervisor.ending:
            return
        self._started = True
        rendezvous = str(self._connections[0].rendezvous)
        self._meeting = {
            "RUEDA_RENDEZVOUS": rendezvous,
            STORE_VARIABLE: rendezvous,
            "RUEDA_SECRET": new_secret(),
        }
        for connection in self._connections:
            connection.send_json(Kind.START, self._meeting_for(connection, self._meeting))
        self._begin_input()
        self._beat(supervisor)

    async def _make_ready(self, supervisor: Supervisor, deadline: float) -> None:
        """Connects to hosts that are not connected yet, and lets them check their part. Raises HostsFailed."""
        for connection in self._connections:
            if not connection.is_opened:
                connection.open(supervisor)
            await supervisor.give_way()
            if supervisor.ending:
                return
        await self._until(supervisor, deadline, self._connections, lambda c: c.is_greeted)
        if not supervisor.ending:
            await self._prepare(supervisor, deadline, self._connections)

    async def _prepare(
        self, supervisor: Supervisor, deadline: float, connections: Sequence[Connection]
    ) -> None:
        """Lets hosts that have said hello check whether they can run their part of the job."""
        self._check_versions(connections)
        self._machines.update({c.name: c.facts.get("machine", "") for c in connections})
        for connection in connections:
            job = self._part(connection.share, self._address_of(connection))
            connection.send_json(Kind.JOB, job.to_json())
        await self._until(supervisor, deadline, connections, lambda c: c.rendezvous is not None)

    async def _until(
        self,
        supervisor: Supervisor,
        deadline: float,
        connections: Sequence[Connection],
        is_reached: Callable[[Connection], bool],
    ) -> None:
        """Returns when `is_reached` for all these hosts, or a signal has ended the job. Raises HostsFailed."""
        while not supervisor.ending:
            for connection in connections:
                if connection.refusal:
                    raise HostsFailed(
                        [connection], f"host '{connection.title}': {connection.refusal}"
                    )
                if connection.lost:
                    raise HostsFailed([connection], connection.explain_failed_start())
            late = [c for c in connections if not is_reached(c)]
            if not late:
                return
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - time.monotonic())
            except asyncio.TimeoutError:
                raise HostsFailed(
                    late,
                    f"host '{late[0].title}' was not ready within {self._reach.start_timeout:g} s"
                    + _nor_others(len(late) - 1),
                ) from None

    def _check_versions(self, connections: Sequence[Connection]) -> None:
        own = installed_version()
        for connection in connections:
            theirs = connection.facts.get("version", "of unknown version")
            if theirs != own:
                raise HostsFailed(
                    [connection],
                    f"host '{connection.title}' has Rueda {theirs}, but the launcher is {own}: install "
                    "the same version on every host",
                )

    def _address_of(self, connection: Connection) -> str:
        """The address at which other hosts reach a host, if known; a loopback address if there is no other host."""
        return address_of(connection, self._connections, self._job.hosts, self._addresses)

    @property
    def _interface(self) -> str:
        variables = {**os.environ, **self._job.settings}
        return variables.get("RUEDA_INTERFACE") or variables.get("HOROVOD_GLOO_IFACE") or ""

    def _part(self, share: HostShare, reached_at: str) -> HostJob:
        return HostJob(
            command=list(self._job.command),
            folder=job_folder(),
            settings=_variables(self._job),
            identities=[self._identity(rank) for rank in share.ranks],
            first=share.first,
            grace=self._grace,
            silence=self._reach.silence,
            interface=self._interface,
            reached_at=reached_at,
            reads_input=not os.isatty(0),
            cores_for=self._ranks_sharing_cores(share) if self._divides_cores else 0,
        )

    @property
    def _divides_cores(self) -> bool:
        """Whether the ranks of a machine share its cores, since the user has not set their threads."""
        return THREADS in self._job.chosen - self._job.settings.keys()

    def _on_machine_of(self, share: HostShare) -> list[HostShare]:
        """All shares on that share's machine, which may be listed under several names."""
        machines = by_machine(self._shares, self._machines)
        return next((shares for shares in machines if share in shares), [share])

    def _ranks_sharing_cores(self, share: HostShare) -> int:
        """The number of ranks among which the share's machine divides its cores."""
        return sum(each.count for each in self._on_machine_of(share))

    def _identity(self, rank: int) -> dict[str, str]:
        """The rank's identity variables."""
        return self._job.told(identity(self._shares, rank, self._machines))

    def _begin_input(self) -> None:
        if not os.isatty(0):
            first = self._connections[0]
            self._input = PipedInput(lambda piece: first.send(Kind.INPUT, piece))
            self._input.more()

    def _beat(self, supervisor: Supervisor) -> None:
        """Sends heartbeats to all hosts, and checks theirs."""
        now = time.monotonic()
        for connection in self._connections:
            if connection.is_over:
                continue
            connection.send(Kind.ALIVE)
            if self._output.writer.is_full:  # its messages are not being read at the moment
                connection.heard_at = now
            if now - connection.heard_at > self._reach.silence:
                connection.give_up(f"it has said nothing for {self._reach.silence:g} s")
        pause = self._reach.silence / BEATS_IN_SILENCE
        asyncio.get_running_loop().call_later(pause, self._beat, supervisor)

    def _take(
        self, supervisor: Supervisor, come: Arrivals, connection: Connection, frame: Frame
    ) -> None:
        if frame.kind in _STREAMS:
            if supervisor.interrupted_by is not None and self._output.writer.is_full:
                return  # their messages are not read, and not needed any more
            self._output.write(frame.rank, _STREAMS[frame.kind], frame.payload)
        elif frame.kind == Kind.EXIT:
            host = connection.facts.get("host", connection.name)
            status, process_id, cause = frame.payload.split(b" ", 2)
            words = cause.decode(errors="replace")
            how = Failure(frame.rank, int(status), host, cause=words)
            self._endings.note(int(process_id), how)
            self._rank_has_ended(supervisor, come, how)
            self._tell_store(how)
            self._note_gone(frame.rank)
        elif frame.kind == Kind.MISSED:
            self._miss(supervisor, frame.rank)
        elif frame.kind == Kind.ARRIVAL:
            come.take(frame.payload)
        elif frame.kind == Kind.ENDINGS:
            self._endings.tell(EndingsForHost(connection))
        elif frame.kind == Kind.TAKEN and self._input is not None:
            self._input.more()
        elif frame.kind == Kind.REFUSED and self._started and not self._has_failed():
            self._refusal = f"host '{connection.title}': {connection.refusal}"
            supervisor.end_after(0)

    def _end_process(self, supervisor: Supervisor, host: str, process_id: int) -> None:
        there = [each for each in self._connections if each.facts.get("host", each.name) == host]
        if len(there) == 1:  # hosts of one name may have processes of one ID
            there[0].send(Kind.STOP, str(process_id).encode())

    def _lose(self, supervisor: Supervisor, connection: Connection) -> None:
        if not self._started:
            return
        left = [rank for rank in connection.share.ranks if rank not in self._gone]
        self._note_gone(*left)
        gone = [
            Failure(rank, 1, connection.title, f"its host is gone: {connection.lost}")
            for rank in left
        ]
        if not supervisor.ending and not self._failures and self._losses.bears(*gone):
            for failure in gone:
                self._borne[failure.rank] = failure
                self._output.say(self._losses.describe(failure, self._is_certain(failure.rank)))
                self._tell_store(failure)
            return
        self._end_without(supervisor, connection)

    def _end_without(self, supervisor: Supervisor, connection: Connection) -> None:
        """Handles the loss of a host if the job cannot go on without it, or is ending."""
        if not self._lost:
            self._failures_before_loss = len(self._failures)
            if not supervisor.ending:
                supervisor.end_after_moment(min(MOMENT, self._grace))
        self._lost.append(connection)

    def _tell_store(self, how: Failure) -> None:
        """Informs the first host, which has the store, unless it is gone itself."""
        first = self._connections[0]
        if not first.is_over:
            first.send(Kind.LOST, how.describe_status().encode(), how.rank)

    def _note_gone(self, *ranks: int) -> None:
        self._gone.update(ranks)
        first = self._connections[0]
        if len(self._gone) == self._job.ranks and not first.is_over:
            first.send(Kind.OVER)

    def _show(self, connection: Connection, line: bytes) -> None:
        """Shows a line that ssh or the process on the host printed."""
        self._output.show("stderr", f"rueda: {connection.title}: ".encode() + line)


def _nor_others(count: int) -> str:
    if count == 0:
        return ""
    return ", nor was another one" if count == 1 else f", nor were {count} others"


def _variables(job: Job) -> dict[str, str]:
    names = {*job.forward, *forwarded_by_default(os.environ)}
    return {**{name: os.environ[name] for name in names}, **job.settings}
