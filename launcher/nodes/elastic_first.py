"""The launcher of node 0 in an elastic job. Other nodes may be lost and come back."""

from __future__ import annotations

import asyncio

from ..elastic.attention import LOOK
from ..elastic.company import Company
from ..elastic.discovery import Elastic
from ..elastic.hosts_run import ElasticHostsRun
from ..job import Job
from ..output import RankOutput
from ..remote.connection import Connection
from ..remote.run import Reach
from ..supervisor import Supervisor
from .first import NodeConnection, OnNodes
from .flags import Nodes


class ElasticNodesRun(OnNodes, ElasticHostsRun):
    """Replaces lost ranks on their nodes, and those of a lost node once its launcher comes back."""

    def __init__(
        self,
        nodes: Nodes,
        job: Job,
        elastic: Elastic,
        reach: Reach,
        output: RankOutput,
        grace: float,
        relay_pipe: int,
    ) -> None:
        """`job`: that of all nodes. `relay_pipe`: the result of guardian.guard()."""
        ElasticHostsRun.__init__(self, job, elastic, reach, output, grace, relay_pipe)
        self._begin(nodes)

    def _take_placement(self) -> bool:
        self._growth = self._new_growth()
        self._company = Company(self._growth, self._end, say=self._output.say)
        return True

    def _lose(self, supervisor: Supervisor, connection: Connection) -> None:
        if not supervisor.ending:  # else it is told the verdict
            self._part_with(connection)
        super()._lose(supervisor, connection)

    def _lose_host(self, supervisor: Supervisor, connection: Connection, why: str) -> None:
        if not (supervisor.ending or self._has_failed() or self._growth.is_ending):
            self._part_with(connection)  # its launcher was told to end, and waits for the verdict
        super()._lose_host(supervisor, connection, why)

    def _part_with(self, connection: Connection) -> None:
        """From now on another launcher may come as this node."""
        number = self._numbers[connection.name]
        node = self._others.get(number)
        if (
            node is not None
            and isinstance(connection, NodeConnection)
            and node.link is connection.link
        ):
            del self._others[number]
            node.link.close()

    async def _fetch(self, supervisor: Supervisor, name: str) -> None:
        """Does not reach out: the node comes back if its starter restarts it. Not admitted while the job is ending."""
        number = self._numbers[name]
        try:
            while number not in self._others or self._growth.is_ending:
                await asyncio.sleep(LOOK)
        except asyncio.CancelledError:
            self._coming.pop(name, None)
            raise
        await super()._fetch(supervisor, name)
