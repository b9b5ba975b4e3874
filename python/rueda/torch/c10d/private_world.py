"""A process group that is a world of its own, besides that of :func:`rueda.init`."""

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
    """A process group that is a world of its own; the first fatal error of an operation ends it.

    ``world``: its number from :func:`open_world`, with ranks numbered as in the group; ``None`` if not formed yet.
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
        """Makes the group this world from now on."""
        with self._ending:  # late errors of the previous world are handled before, or ignored
            self._rank, self._size = rank, size
            self._membership = Membership(world, list(range(size)), True, True)
            self._names = Names(self._prefix)  # a world's number differs from rank to rank
            self._works = {}
            self._closed = False
            self._incarnation += 1
            self._fatal = None
            self.error = None
            # Also leaves when the group is garbage-collected or the interpreter exits.
            self._leave = weakref.finalize(self, _native.close_world, world, "")
            self._apply_timeout()

    def shutdown(self) -> None:
        """Leaves the world."""
        self._closed = True
        self._leave_quietly()

    def abort(self) -> None:
        """Ends the world for all ranks at once."""
        self._closed = True
        self._end("the process group was aborted")

    def _leave_quietly(self) -> None:
        """Leaves the world; operations that all ranks have agreed on still complete."""
        if self._leave is not None:
            self._leave()

    def _end(self, cause: str) -> None:
        with self._ending:  # later callers return only when no operation touches a tensor any more
            self._close_world(cause)

    def _close_world(self, cause: str) -> None:
        if self._leave is not None and self._leave.detach() is not None:
            _native.close_world(self._membership.set_id, cause)

    def _on_fatal(self, incarnation: int, error: Exception) -> None:
        with self._ending:
            if incarnation != self._incarnation:  # from a previous world
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
    """Options of a world that must form within this time, as must each of its operations complete."""
    return stall_options(timeout) | {"init_timeout": timeout.total_seconds()}


def open_world(
    rank: int, size: int, address: str, secret: str, listener: int, options: Mapping[str, Any]
) -> int:
    """Forms a world of the ranks that meet at this address; returns its number, which differs from rank to rank.

    ``listener``: on rank 0 a descriptor already listening there, which the caller keeps; -1 on others. Raises
    :class:`rueda.InitializationError` if the ranks do not meet within ``options["init_timeout"]``.
    """
    if size == 1:
        return _native.open_world(0, 1, "", "", -1, {})
    start_telling(threading.main_thread())  # the calling thread may belong to a manager
    given = {name: str(value) for name, value in options.items()}
    return _native.open_world(rank, size, address, secret, listener, given)
