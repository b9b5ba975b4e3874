"""Node 0's side of the start: opens the rendezvous and waits until all other nodes' launchers have connected."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rueda.endpoints import endpoint_of

from ..errors import LaunchError
from ..remote.address import bare, is_own, resolve
from ..strangers import MAX_PENDING
from ..version import installed_version
from .doorkeeper import Doorkeeper
from .flags import Nodes
from .greeting import key_of

# Seconds between two lines about missing nodes.
_PROGRESS = 10.0
# Seconds between checks for a signal to the launcher.
_LOOK = 0.1


@dataclass(frozen=True)
class Node:
    """Another node whose launcher has connected."""

    rank: int
    host: str  # its own host name
    link: socket.socket

    @property
    def is_gone(self) -> bool:
        """Whether its launcher has closed the connection."""
        try:
            return not self.link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


class Gathering:
    """Accepts connections of other nodes, also of nodes that come back. Use as a context manager."""

    def __init__(self, nodes: Nodes, ranks: int, say: Callable[[str], None]) -> None:
        """`ranks`: per node. `say`: prints a line. Raises LaunchError if the address cannot be listened on."""
        self._say = say
        self._nodes = nodes
        self._ranks = ranks
        key = key_of(nodes.secret, nodes.identity)
        self._doorkeeper = Doorkeeper(
            _listen(nodes), key, self._refusal, self._take, say, expected=nodes.count
        )
        self._problem = ""  # why the job cannot start
        self._is_complete = False
        self.found: dict[int, Node] = {}

    def __enter__(self) -> Gathering:
        """Does nothing: it is listening already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stops listening. Connected nodes stay connected."""
        self._doorkeeper.close()

    async def wait(self, is_ending: Callable[[], bool]) -> bool:
        """Waits for all nodes. Returns False if the launcher should end. Raises LaunchError at the deadline."""
        self._doorkeeper.open()
        begun = time.monotonic()
        told = begun
        while self._missing():
            now = time.monotonic()
            if is_ending():
                return False
            if self._problem:
                raise LaunchError(self._problem)
            if now - begun > self._nodes.timeout:
                raise LaunchError(
                    f"{_describe(self._missing())} of {self._nodes.count} did not connect to {self._nodes.where} "
                    f"within {self._nodes.timeout:g} s: is 'rueda run --nodes {self._nodes.count}' running there, and "
                    "can it reach node 0?"
                )
            if now - told > _PROGRESS:
                told = now
                self._say(
                    f"node 0 waits at {self._nodes.where} for {_describe(self._missing())} of {self._nodes.count} "
                    f"({now - begun:.0f} of {self._nodes.timeout:g} s)"
                )
            await asyncio.sleep(_LOOK)
        self._is_complete = True
        return True

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._nodes.count) if rank not in self.found]

    def _take(self, facts: dict[str, Any], link: socket.socket) -> None:
        node = Node(facts["node"], str(facts.get("host", "")), link)
        if node.rank in self.found:
            self.found.pop(node.rank).link.close()
        self.found[node.rank] = node
        if self._is_complete:
            self._say(f"node {node.rank} on {node.host} has reconnected")

    def _refusal(self, facts: dict[str, Any]) -> str:
        """Why a node with this secret is refused, or "". If not only that node is at fault, the job cannot start."""
        rank, host = facts.get("node"), facts.get("host")
        here = socket.gethostname()
        for name, own, flag in (
            ("nodes", self._nodes.count, "--nodes"),
            ("ranks", self._ranks, "-np"),
            ("version", installed_version(), "Rueda"),
        ):
            if facts.get(name) != own:
                self._problem = (
                    f"node {rank} on {host} has {flag} {facts.get(name)}, and node 0 on {here} has {flag} {own}: they "
                    "must be the same on all nodes"
                )
                return self._problem
        if not isinstance(rank, int) or not 1 <= rank < self._nodes.count:
            numbers = f"from 1 to {self._nodes.count - 1}"
            return f"host {host} claims to be node {rank}: apart from node 0, nodes have numbers {numbers}"
        if rank in self.found and not self.found[rank].is_gone:
            return f"host {self.found[rank].host} is node {rank} already: give each node its own --node-rank"
        return ""


def _listen(nodes: Nodes) -> socket.socket:
    """Listens on node 0's address if it is this host's own, else on all: a name may be that of a translated address."""
    address = resolve(nodes.host) or ""
    if not is_own(address):
        address = ""
    try:
        if address:
            family, where = endpoint_of(address, nodes.port, socket.AI_NUMERICHOST)
            listener = socket.create_server(where, family=family, backlog=MAX_PENDING)
        elif socket.has_dualstack_ipv6():
            listener = socket.create_server(
                ("", nodes.port), family=socket.AF_INET6, backlog=MAX_PENDING, dualstack_ipv6=True
            )
        else:
            listener = socket.create_server(("", nodes.port), backlog=MAX_PENDING)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise LaunchError(
            f"node 0 cannot listen at {bare(address) or 'any address'}, port {nodes.port}: {reason}; name another "
            "port in --rendezvous on every node"
        ) from error
    return listener


def _describe(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"node {ranks[0]}"
    shown = [str(rank) for rank in ranks[:8]] + (["..."] if len(ranks) > 8 else [])
    return (
        f"nodes {', '.join(shown[:-1])} and {shown[-1]}"
        if len(ranks) <= 8
        else f"nodes {', '.join(shown)}"
    )
