"""The launcher of node 0, which runs the job on all nodes once their launchers have connected."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..arrivals import Arrivals
from ..errors import LaunchError
from ..hosts import Host
from ..interruptions import RELAYED
from ..job import Job
from ..lines import LineAssembler
from ..output import RankOutput
from ..placement import HostShare, place
from ..remote import ssh
from ..remote.address import address_in
from ..remote.connection import Connection
from ..remote.frames import Frame, Kind, pack_json
from ..remote.host_job import HostJob
from ..remote.run import Reach, RemoteRun
from ..sink import OUTPUT_LOST
from ..supervisor import Supervisor
from . import relay
from .flags import Nodes
from .gathering import Gathering, Node
from .greeting import key_of, secret_of_ranks

# Seconds for the other nodes to receive the verdict.
_LAST_WORD = 5.0


class OnNodes(RemoteRun):
    """The differences from RemoteRun if other nodes' launchers connect on their own. A mixin without constructor."""

    def _begin(self, nodes: Nodes) -> None:
        """Initializes. Call before anything else."""
        self._nodes = nodes
        self._per_node = self._job.ranks // nodes.count
        self._key = key_of(nodes.secret, nodes.identity)
        self._word = secrets.token_hex(16)
        self._others: dict[int, Node] = {}
        self._numbers: dict[str, int] = {}  # of nodes, by host name
        self._said: dict[int, LineAssembler] = {}  # standard error of other nodes' ranks, by rank
        self._last_word = (1, "the launcher of node 0 has ended")

    async def run(self) -> int:
        """Runs the job to its end on all nodes, and tells the others the verdict."""
        try:
            return await super().run()
        except LaunchError as error:
            self._last_word = (error.exit_code, error.format_message())
            raise
        finally:
            self._tell_others()

    def _part(self, share: HostShare, reached_at: str) -> HostJob:
        """Another node runs what was started there, so its program, folder and variables are left out."""
        part = super()._part(share, reached_at)
        if share.first == 0:
            return part
        return replace(part, command=[], folder="", settings={}, interface="")

    async def _run_ranks(self, supervisor: Supervisor) -> None:
        supervisor.start_writer(self._output.writer)  # because lines are printed before ranks exist
        with contextlib.ExitStack() as closing:
            gathering = closing.enter_context(
                Gathering(self._nodes, self._per_node, self._output.say)
            )
            self._others = gathering.found
            if not await gathering.wait(lambda: supervisor.ending):
                await supervisor.wait()
                return
            names = _distinct(
                [socket.gethostname(), *(self._others[n].host for n in range(1, self._nodes.count))]
            )
            self._numbers = {name: number for number, name in enumerate(names)}
            self._shares = place(self._job.ranks, [Host(name, self._per_node) for name in names])
            if not self._take_placement():
                closing.close()  # no other node is expected
            await super()._run_ranks(supervisor)

    def _take_placement(self) -> bool:
        """All nodes have connected. Returns whether they may come back later."""
        return False

    async def _find_addresses(self, supervisor: Supervisor, names: Sequence[str]) -> None:
        """Nothing to find: the other nodes have connected to this one."""

    def _connection_to(self, share: HostShare, *handlers: Callable[..., None]) -> Connection:
        number = self._numbers[share.host.name]
        if number == 0:
            return Connection(share, ssh.command_here(), *handlers)
        return NodeConnection(self._others[number], share, *handlers)

    def _address_of(self, connection: Connection) -> str:
        """The address at which the others reached this node. Another node's address is known only to itself."""
        if connection is not self._connections[0]:
            return ""
        return address_in(self._others[1].link.getsockname())

    def _meeting_for(self, connection: Connection, meeting: dict[str, str]) -> dict[str, str]:
        """Other nodes get only a word, from which they derive the ranks' secret with the job's."""
        secret = {"RUEDA_SECRET": secret_of_ranks(self._key, self._word)}
        is_own = connection is self._connections[0]
        return {**meeting, **(secret if is_own else {"RUEDA_SECRET": self._word})}

    def _take(
        self, supervisor: Supervisor, come: Arrivals, connection: Connection, frame: Frame
    ) -> None:
        if connection is not self._connections[0] and frame.kind in (Kind.OUT, Kind.ERR):
            # It is shown on its node. Here it only serves to explain a failure.
            if frame.kind == Kind.ERR:
                lines = self._said.setdefault(frame.rank, LineAssembler())
                for line in lines.feed(frame.payload):
                    text = line.decode(errors="replace").rstrip("\r\n")
                    self._output.watch.see(frame.rank, text)
            return
        super()._take(supervisor, come, connection, frame)

    def _verdict(self, supervisor: Supervisor) -> tuple[int, str]:
        code, words = super()._verdict(supervisor)
        # Output lost on this node is not lost on the others.
        self._last_word = (
            (0, "") if code == OUTPUT_LOST and not self._has_failed() else (code, words)
        )
        return code, words

    def _tell_others(self) -> None:
        code, words = self._last_word
        for node in self._others.values():
            with contextlib.suppress(OSError):
                node.link.settimeout(_LAST_WORD)
                node.link.sendall(pack_json(Kind.VERDICT, {"code": code, "words": words}))
            node.link.close()


class NodesRun(OnNodes):
    """Runs the ranks of this node, and controls those of the others."""

    def __init__(
        self,
        nodes: Nodes,
        job: Job,
        reach: Reach,
        output: RankOutput,
        grace: float,
        relay_pipe: int,
    ) -> None:
        """`job`: that of all nodes. `relay_pipe`: the result of guardian.guard()."""
        super().__init__(job, reach, output, grace, relay_pipe)
        self._begin(nodes)


class NodeConnection(Connection):
    """A connection to another node's launcher, through a process that holds the socket."""

    def __init__(self, node: Node, share: HostShare, *handlers: Callable[..., None]) -> None:
        link = node.link
        line = [sys.executable, "-I", "-S", str(Path(relay.__file__).resolve()), str(link.fileno())]
        super().__init__(share, line, *handlers)
        self._pass_fds = [link.fileno()]
        self._node = node
        self.link = link

    @property
    def title(self) -> str:
        """A node that was lost may have come back on another host than its share names."""
        its_own = f"{self._node.host} (node {self._node.rank})"
        return self.name if self.name in (self._node.host, its_own) else its_own

    def _handle(self, frame: Frame) -> None:
        super()._handle(frame)
        if frame.kind == Kind.END:
            self._close()  # ends the process; the socket itself stays open for the verdict

    def _signal(self, number: signal.Signals) -> None:
        if number not in RELAYED:  # batch systems send these to that launcher themselves
            super()._signal(number)

    def _why_ended(self, status: int) -> str:
        said = self._said.decode(errors="replace").strip()
        return f"the connection to its launcher, node {self._node.rank}, has ended" + (
            f": {said}" if said else ""
        )


def _distinct(names: list[str]) -> list[str]:
    """Makes names distinct by appending node numbers. Nodes on one machine (possible with Slurm) share a name."""
    return [
        name if names.index(name) == number else f"{name} (node {number})"
        for number, name in enumerate(names)
    ]


def job_of_all(job: Job, nodes: Nodes) -> Job:
    """The job of all nodes. `job`: one node's."""
    return replace(job, ranks=job.ranks * nodes.count)
