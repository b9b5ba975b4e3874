"""Rueda under torchft: a process group that can be formed anew whenever its members change.

Example::

    import torchft
    from rueda.torch.torchft import ProcessGroupRueda

    manager = torchft.Manager(pg=ProcessGroupRueda(), min_replica_size=1, ...)

``docs/torchft.md`` says what differs from torchft's own process groups.
"""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta

from torch._C._distributed_c10d import Store
from torchft.process_group import ProcessGroupWrapper

from rueda import _native
from rueda.errors import ShutdownError
from rueda.torch.c10d.compiling import never_compiled
from rueda.torch.c10d.meeting import arranged, stall_options
from rueda.torch.c10d.names import Names
from rueda.torch.c10d.operations import Membership
from rueda.torch.c10d.process_group import RuedaProcessGroup
from rueda.whereabouts import start_telling

__all__ = ["ProcessGroupRueda"]


class ProcessGroupRueda(ProcessGroupWrapper):  # type: ignore[misc]  # torchft tells no types
    """Rueda's collectives under :class:`torchft.Manager`, in the place of ``torchft.ProcessGroupGloo``.

    Each :meth:`configure` forms a world of its own of the replicas that torchft names, over torchft's store; it does
    not need :func:`rueda.init`, and has nothing to do with that world. A replica that is lost fails what waits for it,
    on all others at once, with :class:`rueda.PeerLostError`. An operation that takes longer than ``timeout`` fails
    with :class:`rueda.TimeoutError` and ends the world for all. From the first such error on every operation fails,
    and :meth:`errored` tells it, until the next :meth:`configure`.

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

    def getBackendName(self) -> str:  # noqa: N802 - by this name torch calls it
        """The name under which torchft registers the group."""
        return "torchft-rueda"

    def _create_pg(self, store: Store, rank: int, world_size: int) -> PrivateWorld:
        group = PrivateWorld(store, rank, world_size, self._timeout)
        self._error = None
        return group

    def abort(self, errored: bool = True) -> None:
        """Ends the world: what is under way fails at once, on all ranks. Any thread may call it.

        ``errored``: whether something has gone wrong, which :meth:`errored` tells from now on.
        """
        if errored and self._error is None:
            self._error = RuntimeError("the process group has been aborted")
        super().abort(errored=errored)

    def shutdown(self) -> None:
        """Leaves the world: what all ranks have agreed on is finished, what others wait for fails."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()

    def errored(self) -> Exception | None:
        """Why the group has to be configured anew; nothing while it need not be."""
        group = self._pg
        return self._error or (group.error if group is not None else None)

    def set_timeout(self, timeout: timedelta) -> None:
        """How long later operations may take, and the forming of later worlds."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)


@never_compiled
class PrivateWorld(RuedaProcessGroup):
    """A process group that is a world of its own, and ends with the first operation that makes it useless.

    Collective over the ranks of ``store``, which has not been used before. Raises :class:`rueda.InitializationError`
    where they have not met within ``timeout``.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        world = _open(store, rank, size, timeout)
        super().__init__(
            store, rank, size, timeout, Membership(world, list(range(size)), True, True)
        )
        self._names = Names("torchft")  # a world's number differs from rank to rank
        self.error: Exception | None = None
        self._ending = threading.Lock()
        # Also where the group is forgotten, and before the interpreter ends.
        self._leave = weakref.finalize(self, _native.close_world, world, "")

    def shutdown(self) -> None:
        """Leaves the world."""
        self._closed = True
        self._leave()

    def abort(self) -> None:
        """Ends the world for all ranks at once."""
        self._closed = True
        self._end("the process group was aborted")

    def _end(self, cause: str) -> None:
        with self._ending:  # whoever comes later returns once nothing touches a tensor any more
            if self._leave.detach() is not None:
                _native.close_world(self._membership.set_id, cause)

    def _on_fatal(self, error: Exception) -> None:
        if self.error is None:
            self.error = RuntimeError(
                f"the process group was aborted: {type(error).__name__}: {error}"
            )
        self._end(str(error))

    def _require_open(self) -> None:
        if self._closed:
            raise ShutdownError("the process group has been aborted or shut down")
        if self.error is not None:
            raise self.error


def _open(store: Store, rank: int, size: int, timeout: timedelta) -> int:
    if size == 1:
        return _native.open_world(rank, size, "", "", -1, {})
    start_telling(threading.main_thread())  # this one is of the manager
    options = stall_options(timeout) | {"init_timeout": timeout.total_seconds()}
    with arranged(store, rank, size, options) as meeting:
        return _native.open_world(
            rank,
            size,
            meeting.address,
            meeting.secret,
            meeting.listener,
            {name: str(value) for name, value in meeting.options.items()},
        )
