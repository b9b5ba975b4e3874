"""The resources that an executor holds, and the connection to Ray in which it does."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from rueda.errors import TimeoutError
from rueda.ray.resources import check_room, check_room_in_group

__all__ = ["Reservation", "connection"]

# Those that have placement groups of their own.
_held: weakref.WeakSet[Reservation] = weakref.WeakSet()


def connection() -> tuple[str, str] | None:
    """Identifies this process's connection to a cluster; ``None`` without one.

    What was created in another connection cannot be used, and using it would start a new Ray.
    """
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return str(context.get_node_id()), str(context.get_job_id())


class Reservation:
    """Resources for ``size`` workers of ``each``: a placement group of its own, or ``given``, which it leaves alone.

    The own group is removed by :meth:`release`, or when this object is collected: Ray would keep it until the job ends.
    """

    def __init__(
        self,
        size: int,
        each: Mapping[str, float],
        per_host: int | None,
        given: PlacementGroup | None,
    ) -> None:
        """Raises :class:`rueda.InvalidArgumentError` if there can never be room."""
        self._size = size
        self._each = dict(each)
        self.per_host = per_host
        self.is_given = given is not None
        if given is not None:
            check_room_in_group("RayExecutor", size, each, given)
            self.group = given
            return
        check_room("RayExecutor", size, each, per_host)
        if per_host is None:
            self.group = placement_group([self._each] * size, strategy="PACK")
        else:
            # Rounded, as 3 * 0.1 is slightly more than 0.3.
            host = {name: round(amount * per_host, 4) for name, amount in each.items()}
            self.group = placement_group([host] * (size // per_host), strategy="STRICT_SPREAD")
        self._connection = connection()
        self._remove = weakref.finalize(self, _remove_later, self.group, self._connection)
        self._remove.atexit = False  # Ray removes it when the job ends
        _held.add(self)

    def wait(self, seconds: float) -> None:
        """Waits for the own group's resources. Raises :class:`rueda.TimeoutError`."""
        if not self.is_given and not self.group.wait(seconds):
            raise self.no_room(seconds)

    def no_room(self, seconds: float) -> TimeoutError:
        """The error to raise if others have used the resources for so long."""
        others = len([each for each in _held if each is not self])
        own = f", {others} of them in this process and not shut down" if others else ""
        return TimeoutError(
            f"RayExecutor needs {self._size} times {self._each}, which others still use after {seconds:g} s{own}: end "
            "them, or raise timeout="
        )

    def bundle_of(self, index: int) -> int:
        """The bundle in which Ray is to place a worker; -1 for any."""
        return -1 if self.is_given else index // (self.per_host or 1)

    def release(self) -> None:
        """Removes the own group, if the connection in which it was made exists; otherwise Ray has removed it."""
        _held.discard(self)
        if not self.is_given and self._remove.detach() and connection() == self._connection:
            remove_placement_group(self.group)


def _remove_later(group: Any, where: tuple[str, str] | None) -> None:
    """Removes the group from another thread, as this one may hold any of Ray's locks while it collects garbage."""

    def remove() -> None:
        with suppress(Exception):  # Ray may be shut down meanwhile
            if connection() == where:
                remove_placement_group(group)

    with suppress(RuntimeError):  # the interpreter is ending
        threading.Thread(target=remove, daemon=True).start()
