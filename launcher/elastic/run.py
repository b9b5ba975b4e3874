"""An elastic job on this host."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from .. import arrivals
from ..builtin import BuiltinRun, new_rendezvous, rank_variables
from ..environment import without_identity
from ..errors import LaunchError
from ..failure import Failure
from ..hosts import total_slots
from ..job import Job
from ..output import RankOutput
from ..sessions import Session
from ..supervisor import Child, Supervisor
from .attention import LOOK
from .company import Company
from .discovery import Discovery, Elastic
from .growth import Growth

# The only host's name for counting slots.
_HERE = "localhost"


class ElasticRun(BuiltinRun):
    """Starts ranks, replaces lost ones, and starts more when there is room for them."""

    def __init__(
        self, job: Job, elastic: Elastic, output: RankOutput, grace: float, relay: int
    ) -> None:
        """`job.hosts`: this host, as the script (if any) names it. `relay`: the result of guardian.guard()."""
        super().__init__(job, output, grace, relay)
        self._elastic = elastic
        slots = elastic.limits.most
        if elastic.script is not None:
            slots = total_slots(job.hosts)
        self._growth = Growth(elastic.limits, [_HERE] * job.ranks, {_HERE: slots})
        self._company = Company(self._growth, self._end, self._endings, output.say)
        self._children: dict[int, Child] = {}
        self._base: dict[str, str] = {}

    async def _run_ranks(self, supervisor: Supervisor) -> None:
        async with contextlib.AsyncExitStack() as stack:
            discovery = None
            if self._elastic.script is not None:
                discovery = await supervisor.beside.enter_async_context(
                    Discovery(
                        self._elastic.script,
                        self._elastic.slots_per_host,
                        here_only=True,
                        say=self._output.say,
                    )
                )
            come = await stack.enter_async_context(
                self._arrivals_of_ranks(supervisor, self._accept)
            )
            self._base = {
                **without_identity(os.environ),
                **self._job.settings,
                "RUEDA_ELASTIC": "1",
                "RUEDA_BOOTSTRAP": "rendezvous",
                arrivals.VARIABLE: come.address,
            }
            rendezvous = new_rendezvous()
            self._base |= stack.enter_context(self._serve(supervisor, rendezvous))
            for rank in range(self._job.ranks):
                if not supervisor.ending:
                    identity = rank_variables(rank, self._job, rendezvous)
                    self._start(supervisor, come, rank, identity)
                    await supervisor.give_way()
            supervisor.every(LOOK, lambda: self._look(supervisor, come, discovery))
            await supervisor.wait()
            self._company.close()
            self._endings.close()

    def _start(
        self, supervisor: Supervisor, come: arrivals.Arrivals, number: int, identity: dict[str, str]
    ) -> None:
        self._children[number] = self._spawn(
            supervisor, come, number, {**self._base, **identity}, self._job.ranks
        )

    def _look(
        self, supervisor: Supervisor, come: arrivals.Arrivals, discovery: Discovery | None
    ) -> None:
        """Does the periodic work."""
        if supervisor.ending:
            return
        if discovery is not None and discovery.hosts is not None:
            slots = total_slots(host for host in discovery.hosts if host.is_local)
            self._growth.set_slots({_HERE: slots})
        self._company.look()
        self._company.end_unwanted()
        for host in () if self._has_failed() else self._growth.missing(time.monotonic()):
            number = self._growth.start(host)
            self._output.say(f"process {number} is started to join the job")
            try:
                self._start(supervisor, come, number, {"RUEDA_JOINER": str(number)})
            except LaunchError as error:
                self._growth.ended(number, False, time.monotonic())
                self._output.say(str(error))

    def _end(self, number: int) -> None:
        if number in self._children:
            self._children[number].end(self._grace)

    def _note_met(self) -> None:
        self._growth.have_met()

    def _ended_well(self, how: Failure) -> bool:
        return self._company.ended_well(how)

    def _bears(self, how: Failure) -> bool:
        certain = self._is_certain(how.rank)
        return self._company.bears(self._is_missed(how.rank), how, is_certain=certain)

    def _rank_has_ended(
        self, supervisor: Supervisor, come: arrivals.Arrivals, how: Failure
    ) -> None:
        if supervisor.ending:
            return
        super()._rank_has_ended(supervisor, come, how)
        self._company.ended(how.rank, self._ended_well(how))

    # --- Sessions

    def _accept(self, connection: socket.socket, begin: bytes) -> None:
        if len(self._company) > 2 * len(self._children) + 16:
            connection.close()
            return
        Session(connection, begin, self._company.hear, self._forget)

    def _forget(self, session: Session) -> None:
        self._endings.forget(session)
        self._company.forget(session)
