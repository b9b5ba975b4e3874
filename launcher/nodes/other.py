"""The launcher of every node except node 0: connects to node 0 and runs this node's ranks under its control."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from ..errors import LaunchError
from ..guardian import guard
from ..job import Job, job_folder
from ..output import RankOutput, Stream, ended_by, ended_well
from ..remote.address import address_in, bare
from ..remote.channel import Channel, LauncherIsGone
from ..remote.frames import Frame, Kind
from ..remote.host import HostRun
from ..remote.host_job import HostJob, Prepared, prepare
from ..sink import say
from ..store.server import STORE_VARIABLE
from ..supervisor import Supervisor
from ..version import installed_version
from .admission import Refused, be_admitted
from .flags import Nodes
from .greeting import Stranger, key_of, secret_of_ranks

Understood = TypeVar("Understood")

# Signals that end the wait for node 0.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_BETWEEN_TRIES = 0.5
_PROGRESS = 10.0
# Seconds for the start of all ranks once all nodes have connected, and for node 0's verdict.
_START = 600.0
_LAST_WORD = 60.0


class NodeChannel(Channel):
    """The connection to node 0's launcher, in place of the standard streams."""

    def __init__(self, link: socket.socket, timeout: float) -> None:
        """`timeout`: seconds within which node 0 must proceed."""
        super().__init__(link.detach(), "the launcher of node 0", timeout)

    def _look(self, frame: Frame) -> None:
        super()._look(frame)
        if frame.kind == Kind.VERDICT:
            verdict = frame.json()
            code = verdict.get("code")
            raise HasEnded(code if isinstance(code, int) else 1, str(verdict.get("words") or ""))


class HasEnded(Exception):
    """The job has ended before this node had a part in it, at its start or after coming back."""

    def __init__(self, code: int, words: str) -> None:
        """`code` and `words`: node 0's."""
        super().__init__(words)
        self.code = code
        self.words = words


class NodeRun(HostRun):
    """This node's part of the job. Its output is shown here, and node 0 reports how the job ended."""

    def __init__(
        self,
        job: HostJob,
        prepared: Prepared,
        meeting: dict[str, str],
        channel: Channel,
        relay: int,
        output: RankOutput,
    ) -> None:
        """`meeting`: where the ranks meet, and their secret. `relay`: the result of guardian.guard()."""
        super().__init__(job, prepared, meeting, channel, relay)
        self._output = output
        self._verdict: tuple[int, str] | None = None
        self._is_decided = asyncio.Event()

    async def run_to_verdict(self) -> int:
        """Runs the ranks to their end. Prints why the job ended, and returns its exit code."""
        async with Supervisor(self._job.grace, self._output.writer, self._relay) as supervisor:
            supervisor.start_writer(self._writer)
            if self._job.most:  # elastic: wait(), which starts it otherwise, comes at the job's end
                supervisor.start_writer(self._output.writer)
            await self._run_ranks(supervisor)
            self._output.finish()
            await supervisor.written()
            self._tell(Kind.END)
            await self._wait_for_verdict(supervisor)
            code, words = self._verdict or (
                1,
                "the launcher of node 0 does not say how the job ended",
            )
            if code == 0:
                code, words = ended_well(self._output)
            if words:
                await supervisor.say(words)
            return code

    async def _wait_for_verdict(self, supervisor: Supervisor) -> None:
        deadline = time.monotonic() + _LAST_WORD + self._job.grace
        while self._verdict is None and time.monotonic() < deadline:
            try:
                await asyncio.wait_for(self._is_decided.wait(), 0.2)
            except asyncio.TimeoutError:
                await supervisor.give_way()

    def _hand_on(self, stream: Stream, chunk: bytes, rank: int) -> None:
        self._output.write(rank, stream, chunk)
        if stream == "stderr":  # node 0 needs it to explain a failure
            self._tell(Kind.ERR, chunk, rank)

    def _obey(self, supervisor: Supervisor, frame: Frame) -> None:
        if frame.kind == Kind.VERDICT:
            words = frame.json()
            self._decide(int(words["code"]), str(words["words"]))
        else:
            super()._obey(supervisor, frame)

    def _say(self, text: str) -> None:
        self._output.say(text)

    def _refuse(self, why: str) -> None:
        super()._refuse(why)
        self._output.say(why)

    def _lose_launcher(self, supervisor: Supervisor) -> None:
        if self._verdict is None and supervisor.interrupted_by is not None:
            # The others go on without this node.
            self._decide(*ended_by(supervisor.interrupted_by, supervisor.is_abandoned))
        elif self._verdict is None:
            self._decide(1, "the launcher of node 0 is gone; all ranks of this node are ended")
        super()._lose_launcher(supervisor)

    def _decide(self, code: int, words: str) -> None:
        self._verdict = code, words
        self._is_decided.set()


def run_node(nodes: Nodes, job: Job, output: RankOutput, grace: float, silence: float) -> int:
    """Runs this node's part of the job. Returns the exit code. Raises LaunchError if it cannot start.

    `silence`: seconds without a message after which node 0 counts as gone.
    """
    _end_on_signals()
    link = find_first(nodes, job.ranks)
    own_address = address_in(link.getsockname())
    channel = NodeChannel(link, nodes.timeout + _START)
    try:
        channel.greet()
        placed = channel.expect(Kind.JOB)
        part = _understand(nodes, lambda: _part(job, placed.json(), own_address, grace, silence))
        try:
            prepared = prepare(part)
        except LaunchError as error:
            channel.say(Kind.REFUSED, error.format_message())
            raise
        channel.say(Kind.PREPARED, {"rendezvous": ""})
        start = channel.expect(Kind.START)
    except HasEnded as end:
        if words := end.words if end.code else "the other nodes have finished the job":
            say(words)
        return end.code
    except LauncherIsGone:
        raise LaunchError(f"node 0 at {nodes.where} has ended before the job began") from None
    meeting = _understand(nodes, lambda: _meeting(nodes, start.json()))
    relay = guard(grace)

    async def run() -> int:
        return await NodeRun(part, prepared, meeting, channel, relay, output).run_to_verdict()

    return asyncio.run(run())


def _end_on_signals() -> None:
    """Makes signals end this process with a message and a job's exit code, until guardian and supervisor handle them.

    Needed also if it is process 1 of a container, which receives only signals that it handles.
    """

    def end(number: int, _: FrameType | None) -> None:
        code, words = ended_by(signal.Signals(number))
        say(words)
        raise SystemExit(code)

    for number in _ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, end)


def _understand(nodes: Nodes, read: Callable[[], Understood]) -> Understood:
    """Reads a message from node 0. Raises LaunchError if it is invalid."""
    try:
        return read()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise LaunchError(f"node 0 at {nodes.where} has sent an invalid message") from None


def _meeting(nodes: Nodes, said: dict[str, Any]) -> dict[str, str]:
    """Where the ranks meet, and their secret, which is derived here since node 0 does not send it."""
    key = key_of(nodes.secret, nodes.identity)
    # Ranks that join later find the others in another way.
    names = [name for name in ("RUEDA_RENDEZVOUS", STORE_VARIABLE) if name in said]
    return {
        **{name: str(said[name]) for name in names},
        "RUEDA_SECRET": secret_of_ranks(key, str(said["RUEDA_SECRET"])),
    }


def _part(job: Job, placed: dict[str, Any], address: str, grace: float, silence: float) -> HostJob:
    """The part of the job on this node. Its program is the one started here; node 0 only assigns the ranks."""
    identities = [
        job.told({name: str(v) for name, v in identity.items() if name.startswith("RUEDA_")})
        for identity in placed["identities"]
    ]
    variables = {**os.environ, **job.settings}
    return HostJob(
        command=list(job.command),
        folder=job_folder(),
        settings=dict(job.settings),
        identities=identities,
        first=int(placed["first"]),
        grace=grace,
        silence=silence,
        interface=variables.get("RUEDA_INTERFACE") or variables.get("HOROVOD_GLOO_IFACE") or "",
        reached_at=address,
        reads_input=False,
        most=int(placed["most"]),
    )


def find_first(nodes: Nodes, ranks: int) -> socket.socket:
    """Connects to node 0. Returns the connection once node 0 has proved itself and admitted this node.

    Raises LaunchError.
    """
    deadline = time.monotonic() + nodes.timeout
    told = time.monotonic()
    while True:
        try:
            return _greet(nodes, ranks)
        except OSError as error:
            why = error.strerror or str(error)
        now = time.monotonic()
        if now > deadline:
            raise LaunchError(
                f"node {nodes.rank} on {socket.gethostname()} did not reach node 0 at {nodes.where} within "
                f"{nodes.timeout:g} s: {why}; is 'rueda run --nodes {nodes.count} --node-rank 0' running there?"
            )
        if now - told > _PROGRESS:
            told = now
            say(f"node {nodes.rank} waits for node 0 at {nodes.where}: {why}")
        time.sleep(_BETWEEN_TRIES)


def _greet(nodes: Nodes, ranks: int) -> socket.socket:
    """One attempt. Raises OSError if another attempt may succeed, otherwise LaunchError."""
    facts = {
        "node": nodes.rank,
        "nodes": nodes.count,
        "ranks": ranks,
        "host": socket.gethostname(),
        "version": installed_version(),
    }
    key = key_of(nodes.secret, nodes.identity)
    try:
        return be_admitted(bare(nodes.host), nodes.port, key, facts)
    except Stranger:
        raise LaunchError(
            f"what answers at {nodes.where} is not node 0 of this job: it is another program, or has another secret "
            "(RUEDA_SECRET)"
        ) from None
    except Refused as refusal:
        raise LaunchError(str(refusal)) from None
