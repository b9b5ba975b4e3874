"""Training that continues after a failed step: the state that survives it, and the loop that restarts.

docs/horovod.md lists the failures from which it recovers.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from rueda.elastic import changes
from rueda.elastic.rerun import begun_anew, recurs
from rueda.errors import RuedaError
from rueda.horovod.exceptions import (
    HorovodInternalError,
    HorovodInvalidArgumentError,
    HostsUpdatedInterrupt,
    translated,
    translation_of,
)
from rueda.operations import Max
from rueda.reductions import allreduce

__all__ = ["HostUpdateResult", "ObjectState", "State", "run_fn"]

P = ParamSpec("P")
T = TypeVar("T")


class HostUpdateResult:
    """How the job's hosts changed, as bit flags."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """State that is the same on every rank and survives a failed step.

    Subclasses define how it is saved, restored and synchronised. ``bcast_object`` broadcasts an object from rank 0;
    ``get_rank`` returns the rank.

    Example::

        >>> isinstance(hvd.elastic.ObjectState(epoch=0), hvd.elastic.State)
        True
    """

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Adds functions that are called, in this order, whenever the world has been re-formed.

        Example::

            state.register_reset_callbacks([lambda: adjust_learning_rate(hvd.size())])
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Resets the state after the world has been re-formed and calls the reset callbacks."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Reports that hosts are added or removed: the next commit() raises HostsUpdatedInterrupt on every rank.

        ``timestamp``: larger than the previous update's. ``update_res``: see :class:`HostUpdateResult`.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state for restore(), then checks for host changes; collective.

        Raises :class:`HostsUpdatedInterrupt` on every rank if any rank was told of a change.
        """
        self.save()
        self.check_host_updates()

    @translated
    def check_host_updates(self) -> None:
        """Raises :class:`HostsUpdatedInterrupt` on every rank if any rank was told of a change; collective."""
        newest = self._last_updated_timestamp
        update = HostUpdateResult.no_update
        joining, leaving = changes.wanted()
        is_news = joining or leaving
        if is_news:
            # Has no timestamp: the caller's may be any growing numbers, and would all be old after this clock's time.
            update |= (joining * HostUpdateResult.added) | (leaving * HostUpdateResult.removed)
        while not self._host_messages.empty():
            timestamp, result = self._host_messages.get()
            if timestamp > self._last_updated_timestamp:
                is_news = True
                newest = max(newest, timestamp)
                update |= result
        # Reduce each bit separately: the maximum of the combined values is not their union. Each rank also sends
        # whether it has news, since a newcomer does not know the other ranks' last update.
        told = [update & HostUpdateResult.removed, update & HostUpdateResult.added]
        every = allreduce(
            np.array([newest, is_news, *told], np.float64), "elastic/host updates", Max
        )
        self._last_updated_timestamp, is_any_news, removed, added = every.tolist()
        if is_any_news:
            interrupt = HostsUpdatedInterrupt(skip_sync=bool(removed and not added))
            interrupt.is_agreed = True
            raise interrupt

    def save(self) -> None:
        """Keeps a copy in this process's memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restores the last saved state."""
        raise NotImplementedError

    def sync(self) -> None:
        """Broadcasts the state of rank 0 to every rank; collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Hook that runs after the world has been re-formed, before the state is synchronised."""


class ObjectState(State):
    """Python objects, given as keyword arguments and kept as attributes.

    Example::

        state = ObjectState(hvd.broadcast_object, hvd.rank, epoch=0, batch=0)
        state.epoch += 1
        state.commit()
    """

    def __init__(
        self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        self._saved_state = kwargs
        self._set_attrs()
        super().__init__(bcast_object, get_rank)

    def save(self) -> None:
        """Keeps references to the attributes' values."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Sets the attributes to the last saved values."""
        self._set_attrs()

    def sync(self) -> None:
        """Sets the attributes of every rank to those of rank 0."""
        if self._saved_state:
            mine = {name: getattr(self, name) for name in self._saved_state}
            self._saved_state = self._bcast_object(mine)
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def _check(error: Exception) -> None:
    """Raises errors of the application, and those that would only recur in a new world."""
    if isinstance(error, HorovodInternalError | RuedaError):
        cause = error.__cause__ if isinstance(error, HorovodInternalError) else error
        if not recurs(cause) and not isinstance(error, HorovodInvalidArgumentError):
            return
    if isinstance(error, RuedaError):
        raise translation_of(error) from error
    raise error


def run_fn(
    func: Callable[Concatenate[Any, P], T],
    reset: Callable[[], None],
    update: Callable[[HostsUpdatedInterrupt], list[int] | None] | None = None,
    sync: Callable[[Any], None] | None = None,
) -> Callable[Concatenate[Any, P], T]:
    """Wraps ``func(state, ...)`` so that it restarts after a failure that a new world can repair.

    The state is synchronised before each start, unless ranks only left. After :class:`HorovodInternalError`, or a
    :class:`rueda.RuedaError` from backward(), it is restored; after :class:`HostsUpdatedInterrupt` it stays as it is.
    Then ``reset`` re-forms the world, the reset callbacks run, and ``func`` restarts. Errors that would only recur,
    such as a mismatch between ranks, are raised. ``update``: called before ``reset`` with a
    HostsUpdatedInterrupt; if it has changed the world, it returns the ranks that joined, possibly none, and ``reset``
    is not called. ``sync``: called with the state instead of its ``sync()``.
    """
    return begun_anew(
        func,
        interrupts=HostsUpdatedInterrupt,
        check=_check,
        reset=reset,
        update=update,
        sync=sync,
    )
