"""A process group that is a world of its own, beside that of :func:`rueda.init`."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from rueda import _native
from rueda.errors import ShutdownError
from rueda.torch.c10d.meeting import stall_options
from rueda.torch.c10d.names import Names
from rueda.torch.c10d.operations import Membership
from rueda.torch.c10d.process_group import RuedaProcessGroup
from rueda.torch.compiling import never_compiled
from rueda.whereabouts import start_telling

__all__ = ["PrivateWorld", "open_world", "private_options"]


@never_compiled
class PrivateWorld(RuedaProcessGroup):
    """A process group that is a world of its own, and ends with the first operation that makes it useless.

    ``world``: as :func:`open_world` has it, of ranks numbered as in the group; nothing where there is none yet.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, world: int | None, names: str
    ) -> None:
        super().__init__(store, rank, size, timeout, Membership(0, [], True, True, False))
        self._prefix = names
        self._ending = threading.Lock()
        self._leave: weakref.finalize[..., PrivateWorld] | None = None
        self.error: Exception | None = None
        if world is not None:
            self._enter(world, rank, size)

    def _enter(self, world: int, rank: int, size: int) -> None:
        """From now on the group is this world."""
        with self._ending:  # what is still told of the world before is told before, or not at all
            self._rank, self._size = rank, size
            self._membership = Membership(world, list(range(size)), True, True)
            self._patience = 0.0
            self._names = Names(self._prefix)  # a world's number differs from rank to rank
            self._works = {}
            self._closed = False
            self._incarnation += 1
            self._fatal = None
            self.error = None
            # Also where the group is forgotten, and before the interpreter ends.
            self._leave = weakref.finalize(self, _native.close_world, world, "")
            self._be_patient(self._timeout)

    def shutdown(self) -> None:
        """Leaves the world."""
        self._closed = True
        self._leave_quietly()

    def abort(self) -> None:
        """Ends the world for all ranks at once."""
        self._closed = True
        self._end("the process group was aborted")

    def _leave_quietly(self) -> None:
        """What all ranks have agreed on is finished."""
        if self._leave is not None:
            self._leave()

    def _end(self, cause: str) -> None:
        with self._ending:  # whoever comes later returns once nothing touches a tensor any more
            self._close_world(cause)

    def _close_world(self, cause: str) -> None:
        if self._leave is not None and self._leave.detach() is not None:
            _native.close_world(self._membership.set_id, cause)

    def _on_fatal(self, incarnation: int, error: Exception) -> None:
        with self._ending:
            if incarnation != self._incarnation:  # of a world that has ended
                return
            super()._on_fatal(incarnation, error)
            if self.error is None:
                self.error = RuntimeError(
                    f"the process group was aborted: {type(error).__name__}: {error}"
                )
            self._close_world(str(error))

    def _require_open(self) -> None:
        if self._closed:
            raise ShutdownError("the process group has been aborted or shut down")
        if self.error is not None:
            raise self.error


def private_options(timeout: timedelta) -> dict[str, Any]:
    """Of a world that is to be formed within this time, as is each of its operations to be done."""
    return stall_options(timeout) | {"init_timeout": timeout.total_seconds()}


def open_world(
    rank: int, size: int, address: str, secret: str, listener: int, options: Mapping[str, Any]
) -> int:
    """Forms a world of the ranks that meet at this address; its number, which differs from rank to rank.

    ``listener``: a descriptor that listens there already, on rank 0, which stays the caller's; -1 on others. Raises
    :class:`rueda.InitializationError` where the ranks have not met within ``options["init_timeout"]``.
    """
    if size == 1:
        return _native.open_world(0, 1, "", "", -1, {})
    start_telling(threading.main_thread())  # this one may be of a manager
    given = {name: str(value) for name, value in options.items()}
    return _native.open_world(rank, size, address, secret, listener, given)
