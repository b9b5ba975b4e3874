"""Training that goes on after a failed step: what is to survive it, and the loop that begins anew.

docs/horovod.md tells from what it recovers.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from rueda.elastic import changes
from rueda.elastic.rerun import LASTING, begun_anew
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
    """What happened to the hosts of the job; the numbers are bits."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class State:
    """What is to be the same on every rank, and to survive a failed step.

    A subclass says how it is saved, restored and synchronised. ``bcast_object`` broadcasts an object from rank 0;
    ``get_rank`` tells the rank.

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
        """Functions to be called, in this order, whenever the world has been formed anew.

        Example::

            state.register_reset_callbacks([lambda: adjust_learning_rate(hvd.size())])
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The world has been formed anew."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Somebody says that hosts come or go: the next commit() raises HostsUpdatedInterrupt on every rank.

        ``timestamp``: larger than that of the update before. ``update_res``: see :class:`HostUpdateResult`.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves, then looks for changes of hosts; collective. What is saved is what restore() brings back.

        Raises :class:`HostsUpdatedInterrupt` on every rank where any of them was told of a change.
        """
        self.save()
        self.check_host_updates()

    @translated
    def check_host_updates(self) -> None:
        """Raises :class:`HostsUpdatedInterrupt` on every rank where any was told of a change; collective."""
        newest = self._last_updated_timestamp
        update = HostUpdateResult.no_update
        joining, leaving = changes.wanted()
        is_news = joining or leaving
        if is_news:
            newest = max(newest, time.time())  # which may be less than that of another host's clock
            update |= (joining * HostUpdateResult.added) | (leaving * HostUpdateResult.removed)
        while not self._host_messages.empty():
            timestamp, result = self._host_messages.get()
            if timestamp > self._last_updated_timestamp:
                is_news = True
                newest = max(newest, timestamp)
                update |= result
        # Each bit by itself: the largest number is not what all of them say together. Whether there is news is for
        # each rank to say, too: a newcomer does not know the last update of the others.
        told = [update & HostUpdateResult.removed, update & HostUpdateResult.added]
        every = allreduce(
            np.array([newest, is_news, *told], np.float64), "elastic/host updates", Max
        )
        self._last_updated_timestamp, is_any_news, removed, added = every.tolist()
        if is_any_news:
            raise HostsUpdatedInterrupt(skip_sync=bool(removed and not added))

    def save(self) -> None:
        """Keeps a copy in the memory of this process."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings back what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes it the same on every rank: as it is on rank 0; collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """What has to be done when the world has been formed anew, before anything is synchronised."""


class ObjectState(State):
    """Python objects as attributes, by keyword.

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
        """Keeps the attributes' values."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Sets the attributes to what was saved last."""
        self._set_attrs()

    def sync(self) -> None:
        """Sets the attributes of every rank to what rank 0 has."""
        if self._saved_state:
            mine = {name: getattr(self, name) for name in self._saved_state}
            self._saved_state = self._bcast_object(mine)
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def _check(error: Exception) -> None:
    """Raises what a new world does not help against: the cause would only come back."""
    cause = error.__cause__ if isinstance(error, HorovodInternalError) else error
    if not isinstance(cause, LASTING) and not isinstance(error, HorovodInvalidArgumentError):
        return
    if isinstance(error, RuedaError):
        raise translation_of(error) from error
    raise error


def run_fn(
    func: Callable[Concatenate[Any, P], T],
    reset: Callable[[], None],
    update: Callable[[], list[int] | None] | None = None,
) -> Callable[Concatenate[Any, P], T]:
    """The function ``func(state, ...)``, begun anew after a failure that a new world can repair.

    The state is synchronised first. After :class:`HorovodInternalError`, or a :class:`rueda.RuedaError` out of
    backward(), it is restored; after :class:`HostsUpdatedInterrupt` it stays as it is. Then ``reset`` forms the
    world anew, the reset callbacks are called, and ``func`` begins again. Errors that would only come back, such as a
    difference between ranks, are raised as they are. ``update``: called before ``reset`` after HostsUpdatedInterrupt;
    where it has changed the world it tells who has joined, maybe nobody, and reset is not called.
    """
    return begun_anew(
        func,
        interrupts=HostsUpdatedInterrupt,
        failures=(HorovodInternalError, RuedaError),
        check=_check,
        reset=reset,
        update=update,
    )
