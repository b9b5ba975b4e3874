"""A job on this host whose ranks come and go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any

from .. import arrivals
from ..builtin import MOMENT, BuiltinRun, new_rendezvous, rank_variables
from ..environment import without_identity
from ..errors import LaunchError
from ..failure import Failure
from ..job import Job
from ..output import RankOutput
from ..sessions import Session
from ..sink import say
from ..supervisor import Child, Supervisor
from .discovery import Discovery
from .growth import Growth, Limits

# How often it is looked whether processes are to be started; seconds.
_LOOK = 0.2


@dataclass(frozen=True)
class Elastic:
    """What the command line asks for."""

    limits: Limits
    script: str | None
    slots_per_host: int | None
    start_timeout: float  # seconds until the script must have named enough slots


class ElasticRun(BuiltinRun):
    """Starts ranks, replaces those that are lost, and starts more where there is room for them."""

    def __init__(
        self, job: Job, elastic: Elastic, output: RankOutput, grace: float, relay: int
    ) -> None:
        """`relay`: as guardian.guard() gives it."""
        super().__init__(job, output, grace, relay)
        self._elastic = elastic
        self._growth = Growth(elastic.limits, job.ranks, elastic.limits.most)
        self._children: dict[int, Child] = {}
        self._sessions: list[Session] = []
        self._told: dict[str, list[int]] = {}
        self._unwanted: set[int] = set()
        self._base: dict[str, str] = {}

    async def _run_ranks(self, supervisor: Supervisor) -> None:
        async with contextlib.AsyncExitStack() as stack:
            discovery = None
            if self._elastic.script is not None:
                discovery = await stack.enter_async_context(
                    Discovery(self._elastic.script, self._elastic.slots_per_host)
                )
                await self._await_slots(supervisor, discovery)
            come = await stack.enter_async_context(
                arrivals.LocalArrivals(
                    self._job.ranks,
                    lambda sentence: self._notice_absence(supervisor, sentence),
                    self._accept,
                )
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
            supervisor.every(_LOOK, lambda: self._look(supervisor, come, discovery))
            await supervisor.wait()
            for session in list(self._sessions):
                session.close()
            self._endings.close()

    async def _await_slots(self, supervisor: Supervisor, discovery: Discovery) -> None:
        deadline = time.monotonic() + self._elastic.start_timeout
        while not supervisor.ending and (discovery.slots or 0) < self._job.ranks:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"--host-discovery-script: {discovery.slots or 0} slots of {self._job.ranks} were there "
                    f"within {self._elastic.start_timeout:g} s (--elastic-timeout)"
                )
            await asyncio.sleep(_LOOK)
        self._growth.set_slots(discovery.slots or 0)

    def _start(
        self, supervisor: Supervisor, come: arrivals.Arrivals, number: int, identity: dict[str, str]
    ) -> None:
        self._children[number] = self._spawn(
            supervisor, come, number, {**self._base, **identity}, self._job.ranks
        )

    def _look(
        self, supervisor: Supervisor, come: arrivals.Arrivals, discovery: Discovery | None
    ) -> None:
        """Does what has become due."""
        if supervisor.ending:
            return
        if discovery is not None and discovery.slots is not None:
            self._growth.set_slots(discovery.slots)
        self._tell_members()
        for number in self._growth.unwanted:
            self._end(number)
        for _ in range(self._growth.missing(time.monotonic())):
            number = self._growth.start()
            say(f"process {number} is started to join the job")
            try:
                self._start(supervisor, come, number, {"RUEDA_JOINER": str(number)})
            except LaunchError as error:
                self._growth.ended(number, False, time.monotonic())
                say(str(error))

    def _end(self, number: int) -> None:
        if number not in self._unwanted and number in self._children:
            self._unwanted.add(number)
            self._children[number].send_signal(signal.SIGTERM)

    def _rank_has_ended(
        self, supervisor: Supervisor, come: arrivals.Arrivals, how: Failure
    ) -> None:
        if supervisor.ending:
            return
        growth = self._growth
        well = how.status == 0 or how.rank in self._unwanted
        if well and how.rank < self._job.ranks:
            come.leave(how.rank)
        if not well and self._failures:
            self._failures.append(how)
        elif not well and self._is_missed(how.rank):
            say(f"the job ends, for process {how.rank} ended before the first world was formed")
            supervisor.end_after(min(MOMENT, self._grace))
            self._failures.append(how)
        elif not well and not growth.bears_loss_of(how.rank):
            say(f"the job ends, for {growth.why_not(how.rank)}")
            supervisor.end_after(min(MOMENT, self._grace))
            self._failures.append(how)
        elif not well:
            self._borne[how.rank] = how
            what = "is lost" if growth.was_member(how.rank) else "has not joined"
            say(f"process {how.rank} {what}, {how.describe_status()}; the job goes on")
        growth.ended(how.rank, well, time.monotonic())
        self._tell_members()
        for number in growth.unwanted:
            self._end(number)

    # --- Ranks

    def _accept(self, connection: socket.socket, begin: bytes) -> None:
        if len(self._sessions) > 2 * len(self._children) + 16:
            connection.close()
            return
        Session(connection, begin, self._take, self._forget)

    def _forget(self, session: Session) -> None:
        self._endings.forget(session)
        if session in self._sessions:
            self._sessions.remove(session)

    def _take(self, session: Session, message: dict[str, Any]) -> None:
        growth = self._growth
        try:
            if "hello" in message:
                session.number = int(message["hello"])
                if session not in self._sessions:
                    self._sessions.append(session)
                session.send(**self._news())
            if message.get("endings") is True:
                self._endings.tell(session)
            if "ready" in message:
                growth.is_ready(int(message["ready"]))
            if "follow" in message:
                self._show("follow", message["follow"])
            if "door" in message:
                self._show("enter", message["door"])
            if "formed" in message:
                growth.formed([int(number) for number in message["formed"]["members"]])
            if "refused" in message:
                for number in growth.refuse([int(n) for n in message["refused"]["joiners"]]):
                    self._children[number].send_signal(signal.SIGTERM)
        except (KeyError, TypeError, ValueError, AttributeError):
            session.close()
            return
        self._tell_members()

    def _show(self, what: str, door: dict[str, Any]) -> None:
        """Tells those who are to join where they meet the members, and with which ranks."""
        ranks = {int(number): int(rank) for number, rank in door["joiners"].items()}
        rest: dict[str, Any] = {"address": str(door["address"])}
        for size in ("size", "members"):
            if size in door:
                rest[size] = int(door[size])
        if "numbers" in door:
            rest["numbers"] = [int(number) for number in door["numbers"]]
        for session in list(self._sessions):
            if session.number in ranks:
                session.send(**{what: {**rest, "rank": ranks[session.number]}})

    def _news(self) -> dict[str, list[int]]:
        """What ranks are to know of the processes that come and go."""
        growth = self._growth
        return {"joiners": growth.ready, "leaving": growth.leaving, "gone": growth.gone}

    def _tell_members(self) -> None:
        """What has changed, and nothing else."""
        now = self._news()
        if now == self._told:
            return
        self._told = now
        for session in list(self._sessions):
            session.send(**now)
