"""An elastic job on several hosts, which may also come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from ..arrivals import Arrivals
from ..errors import LaunchError
from ..failure import Failure
from ..hosts import Host, total_slots
from ..job import Job
from ..output import RankOutput
from ..placement import HostShare, place
from ..remote.address import is_loopback
from ..remote.connection import Connection
from ..remote.frames import Frame, Kind
from ..remote.host_job import HostJob
from ..remote.run import HostsFailed, Reach, RemoteRun
from ..remote.session_relay import RelayedSession, speaks_for_others
from ..remote.ssh import agent_words
from ..supervisor import Supervisor
from .attention import LOOK
from .company import Company
from .discovery import Discovery, Elastic
from .growth import Growth

# Set for ranks that others may join.
_ELASTIC = {"RUEDA_ELASTIC": "1"}


class ElasticHostsRun(RemoteRun):
    """Starts ranks on hosts, replaces lost ranks, and starts more when hosts or slots are added.

    The process that started the first ranks of a host also starts the later ones. It stays until the host vanishes or
    the job ends.
    """

    def __init__(
        self,
        job: Job,
        elastic: Elastic,
        reach: Reach,
        output: RankOutput,
        grace: float,
        relay: int,
    ) -> None:
        """`job.hosts`: the initial hosts. `relay`: the result of guardian.guard()."""
        super().__init__(job, reach, output, grace, relay)
        agent_words(reach.agent)  # raises early if it is invalid: hosts may come much later
        self._elastic = elastic
        self._growth = self._new_growth()
        self._company = Company(self._growth, self._end, say=self._output.say)
        self._ready: dict[str, Connection] = {}  # hosts on which processes can start
        self._coming: dict[str, asyncio.Task[None]] = {}  # hosts that are being reached
        self._problems: set[str] = set()  # messages already printed about unreachable hosts
        self._talks: dict[Connection, dict[int, RelayedSession]] = {}

    async def _run_ranks(self, supervisor: Supervisor) -> None:
        discovery = None
        if self._elastic.script is not None:
            discovery = await supervisor.beside.enter_async_context(
                Discovery(self._elastic.script, self._elastic.slots_per_host, say=self._output.say)
            )
        supervisor.every(LOOK, lambda: self._look(supervisor, discovery))
        try:
            await super()._run_ranks(supervisor)
        finally:
            for task in self._coming.values():
                task.cancel()

    def _new_growth(self) -> Growth:
        # An oversubscribed host has as many slots as ranks.
        slots = {host.name: host.slots for host in self._job.hosts}
        for share in self._shares:
            slots[share.host.name] = max(share.host.slots, share.count)
        hosts = [share.host.name for share in self._shares for _ in share.ranks]
        return Growth(self._elastic.limits, hosts, slots)

    async def _make_ready(self, supervisor: Supervisor, deadline: float) -> None:
        """Leaves out hosts that cannot run their part, if the others have enough slots."""
        left_out: set[str] = set()
        while True:
            try:
                await super()._make_ready(supervisor, deadline)
            except HostsFailed as error:
                left_out |= {connection.name for connection in error.connections}
                others = [host for host in self._job.hosts if host.name not in left_out]
                if total_slots(others) < self._job.ranks:
                    raise
                self._say_problem(error)
                self._begin_on(others)
                deadline = time.monotonic() + self._reach.start_timeout  # for the hosts added now
            else:
                break
        for name in left_out:
            self._growth.host_failed(name, time.monotonic())

    def _begin_on(self, hosts: Sequence[Host]) -> None:
        """Places the ranks again before any has started. Reconnects to hosts that have prepared other ranks."""
        self._shares = place(self._job.ranks, hosts)
        before = self._connections
        reached = {c.name: c for c in before if not (c.lost or c.is_asked)}
        self._connections = []
        for share in self._shares:
            connection = reached.get(share.host.name)
            if connection is None:
                connection = self._connection_to(share, *self._handlers)
            connection.assign(share)
            self._connections.append(connection)
        for connection in before:
            if connection not in self._connections:
                connection.give_up("it is not needed")
        self._growth = self._new_growth()
        self._company = Company(self._growth, self._end, say=self._output.say)

    def _say_problem(self, error: LaunchError) -> None:
        """Prints a host's problem once."""
        if str(error) not in self._problems:
            self._problems.add(str(error))
            self._output.say(f"{error}; the job goes on without it")

    async def _start(self, supervisor: Supervisor) -> None:
        await super()._start(supervisor)
        if self._started:
            self._ready = {connection.name: connection for connection in self._connections}

    # --- Periodic work

    def _look(self, supervisor: Supervisor, discovery: Discovery | None) -> None:
        if supervisor.ending or not self._started:
            return
        if discovery is not None and discovery.hosts is not None:
            self._growth.set_slots({host.name: host.slots for host in discovery.hosts})
        self._company.look()
        self._company.end_unwanted()
        for name, connection in list(self._ready.items()):
            if connection.is_over:  # it has ended for another reason
                self._lose_host(supervisor, connection, "Rueda's process there has ended")
            elif not self._growth.has_slots(name) and not self._growth.alive_on(name):
                self._dismiss(connection)
        for host in () if self._has_failed() else self._growth.missing(time.monotonic()):
            if host in self._ready:
                self._start_joiner(self._ready[host])
            elif host not in self._coming:
                self._coming[host] = asyncio.create_task(self._fetch(supervisor, host))

    def _start_joiner(self, connection: Connection) -> None:
        number = self._growth.start(connection.name)
        self._output.say(f"process {number} is started on {connection.title} to join the job")
        variables = {"RUEDA_JOINER": str(number), "RUEDA_BOOTSTRAP": "rendezvous"}
        connection.start_joiner(number, {**variables, **_ELASTIC})

    def _end(self, number: int) -> None:
        """Tells a process to end."""
        connection = self._ready.get(self._growth.host_of(number))
        if connection is not None:
            connection.send(Kind.STOP, rank=number)

    # --- Hosts that come and go

    async def _fetch(self, supervisor: Supervisor, name: str) -> None:
        """Makes a host ready for processes to start on. If that fails, tries again later."""
        share = HostShare(Host(name, self._growth.slots_of(name)), self._job.ranks, 0)
        try:
            await self._find_addresses(supervisor, [name])
        except asyncio.CancelledError:
            self._coming.pop(name, None)
            raise
        connection = self._connection_to(share, *self._handlers)
        try:
            deadline = time.monotonic() + self._reach.start_timeout
            connection.open(supervisor)
            await self._until(supervisor, deadline, [connection], lambda c: c.is_greeted)
            if not supervisor.ending:
                await self._prepare(supervisor, deadline, [connection])
        except LaunchError as error:
            self._growth.host_failed(name, time.monotonic())
            if not self._growth.is_over:
                self._say_problem(error)
        else:
            if not supervisor.ending and not self._growth.is_over:
                meeting = {n: v for n, v in self._meeting.items() if n != "RUEDA_RENDEZVOUS"}
                connection.send_json(Kind.START, self._meeting_for(connection, meeting))
                self._connections.append(connection)
                self._ready[name] = connection
        finally:
            self._coming.pop(name, None)
            if self._ready.get(name) is not connection:
                connection.give_up("it is not needed")

    def _dismiss(self, connection: Connection) -> None:
        """The host has vanished, and its ranks have left."""
        self._forget(connection)
        connection.send(Kind.OVER)

    def _forget(self, connection: Connection) -> None:
        """No process can start there any more, and none is left."""
        if self._ready.get(connection.name) is connection:
            del self._ready[connection.name]
        for talk in self._talks.pop(connection, {}).values():
            self._company.forget(talk)

    def _lose(self, supervisor: Supervisor, connection: Connection) -> None:
        if self._ready.get(connection.name) is connection:  # it was ready, and was not dismissed
            self._lose_host(supervisor, connection, connection.lost)

    def _lose_host(self, supervisor: Supervisor, connection: Connection, why: str) -> None:
        self._forget(connection)
        if supervisor.ending or self._has_failed():
            self._end_without(supervisor, connection)
            return
        gone = [
            Failure(number, 1, connection.title, f"its host is gone: {why}")
            for number in self._growth.alive_on(connection.name)
        ]
        if not gone:
            self._output.say(f"host '{connection.title}' was lost: {why}; the job goes on")
        elif not self._company.bears(
            False, *gone, is_certain=all(self._is_certain(how.rank) for how in gone)
        ):
            self._end_without(supervisor, connection)
            return
        for how in gone:
            self._borne[how.rank] = how
            self._tell_store(how)
        self._company.host_lost(connection.name)
        self._end_when_all_are_gone()

    def _address_of(self, connection: Connection) -> str:
        """A host's address. A loopback address is of no use if other hosts may join."""
        found = super()._address_of(connection)
        may_join = any(host.name not in self._machines for host in self._job.hosts)
        return "" if may_join and is_loopback(found) else found

    # --- Processes

    def _part(self, share: HostShare, reached_at: str) -> HostJob:
        part = super()._part(share, reached_at)
        most = self._elastic.limits.most
        if self._elastic.script is None:  # a script may give a host more slots later
            most = min(most, _room(share))
        return replace(part, most=most)

    def _ranks_sharing_cores(self, share: HostShare) -> int:
        return sum(map(_room, self._on_machine_of(share)))

    def _identity(self, rank: int) -> dict[str, str]:
        return {**super()._identity(rank), **_ELASTIC}

    def _take(
        self, supervisor: Supervisor, come: Arrivals, connection: Connection, frame: Frame
    ) -> None:
        if frame.kind == Kind.SESSION:
            self._hear(connection, frame)
        elif frame.kind == Kind.UNSTARTED:
            why = frame.payload.decode(errors="replace")
            self._output.say(f"host '{connection.title}': {why}; the job goes on")
            self._company.ended(frame.rank, False)
        elif frame.kind == Kind.REFUSED and self._ready.get(connection.name) is not connection:
            return  # reported by the code that waits for it
        else:
            super()._take(supervisor, come, connection, frame)

    def _hear(self, connection: Connection, frame: Frame) -> None:
        talks = self._talks.setdefault(connection, {})
        if not frame.payload:
            talk = talks.pop(frame.rank, None)
            if talk is not None:
                self._company.forget(talk)
            return
        talk = talks.setdefault(frame.rank, RelayedSession(connection, frame.rank))
        message = frame.json()
        if speaks_for_others(message, connection.ranks):
            talk.close()
        else:
            self._company.hear(talk, message)

    def _note_met(self) -> None:
        self._growth.have_met()

    def _ended_well(self, how: Failure) -> bool:
        return self._company.ended_well(how)

    def _bears(self, how: Failure) -> bool:
        certain = self._is_certain(how.rank)
        return self._company.bears(self._is_missed(how.rank), how, is_certain=certain)

    def _rank_has_ended(self, supervisor: Supervisor, come: Arrivals, how: Failure) -> None:
        if supervisor.ending:
            return
        super()._rank_has_ended(supervisor, come, how)
        self._company.ended(how.rank, self._ended_well(how))

    def _tell_store(self, how: Failure) -> None:
        if how.rank < self._job.ranks:
            super()._tell_store(how)

    def _note_gone(self, *ranks: int) -> None:
        self._end_when_all_are_gone()

    def _end_when_all_are_gone(self) -> None:
        """Ends the processes on all hosts if no rank is left."""
        if not self._growth.is_over:
            return
        for task in self._coming.values():
            task.cancel()
        for connection in list(self._ready.values()):
            self._dismiss(connection)


def _room(share: HostShare) -> int:
    """The number of processes for which the host has slots."""
    return max(1, share.host.slots, share.count)
