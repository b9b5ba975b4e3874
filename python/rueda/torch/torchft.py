"""Rueda under torchft: a process group that can be formed again whenever its members change.

Example::

    import torchft
    from rueda.torch.torchft import ProcessGroupRueda

    manager = torchft.Manager(pg=ProcessGroupRueda(), min_replica_size=1, ...)

``docs/torchft.md`` says what differs from torchft's own process groups.
"""

from __future__ import annotations

from datetime import timedelta

from torch._C._distributed_c10d import Store
from torchft.process_group import ProcessGroupWrapper

from rueda.torch.c10d.meeting import arranged
from rueda.torch.c10d.private_world import PrivateWorld, open_world, private_options

__all__ = ["ProcessGroupRueda"]


class ProcessGroupRueda(ProcessGroupWrapper):  # type: ignore[misc]  # torchft tells no types
    """Rueda's collectives under :class:`torchft.Manager`, as a replacement for ``torchft.ProcessGroupGloo``.

    Each :meth:`configure` forms a separate world of the replicas that torchft names, over torchft's store; it does not
    need :func:`rueda.init`, and is unrelated to that world. When a replica is lost, operations that wait for it fail
    immediately on all others, with :class:`rueda.PeerLostError`. An operation that takes longer than ``timeout`` fails
    with :class:`rueda.TimeoutError` and ends the world for all. After the first such error every operation fails, and
    :meth:`errored` returns it, until the next :meth:`configure`.

    Example::

        >>> import datetime
        >>> store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        >>> group = ProcessGroupRueda(timeout=datetime.timedelta(seconds=10))
        >>> group.configure(f"localhost:{store.port}/quorum/1", "replica_0", 0, 1)
        >>> tensor = torch.ones(2)
        >>> group.allreduce([tensor], dist.ReduceOp.SUM).wait()
        True
        >>> tensor
        tensor([1., 1.])
        >>> group.shutdown()
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._pg: PrivateWorld | None
        self._error: Exception | None = None

    def getBackendName(self) -> str:  # noqa: N802 - the name that torch calls
        """The name under which torchft registers the group."""
        return "torchft-rueda"

    def _create_pg(self, store: Store, rank: int, world_size: int) -> PrivateWorld:
        world = _open(store, rank, world_size, self._timeout)
        group = PrivateWorld(store, rank, world_size, self._timeout, world, "c10d.torchft")
        self._error = None
        return group

    def abort(self, errored: bool = True) -> None:
        """Ends the world: pending operations fail immediately, on all ranks. Any thread may call it.

        ``errored``: whether this is an error, which :meth:`errored` returns from now on.
        """
        if errored and self._error is None:
            self._error = RuntimeError("the process group has been aborted")
        super().abort(errored=errored)

    def shutdown(self) -> None:
        """Leaves the world: finishes what all ranks have agreed on; what others wait for fails."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()

    def errored(self) -> Exception | None:
        """Why the group must be configured again; ``None`` if it need not be."""
        group = self._pg
        return self._error or (group.error if group is not None else None)

    def set_timeout(self, timeout: timedelta) -> None:
        """The time limit for later operations, and for forming later worlds."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)


def _open(store: Store, rank: int, size: int, timeout: timedelta) -> int:
    """A world of the ranks of ``store``, which must not have been used before."""
    options = private_options(timeout)
    if size == 1:
        return open_world(0, 1, "", "", -1, options)
    with arranged(store, rank, size, options, timeout) as meeting:
        return open_world(
            rank, size, meeting.address, meeting.secret, meeting.listener, meeting.options
        )
