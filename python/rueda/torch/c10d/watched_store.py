"""Waiting at torch's store among ranks of a Rueda world: the store itself does not notice that a rank is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from rueda import _native
from rueda.errors import ShutdownError

__all__ = ["WatchedStore"]

Answer = TypeVar("Answer")

# The first and the longest pause between polls, and the shortest timeout passed to a store; seconds.
_FIRST_PAUSE = 0.001
_MAX_PAUSE = 0.2
_SHORTEST = 0.01
# How long to wait until the world notices the loss of the rank that served the store; seconds.
_NEWS = 5.0


class WatchedStore:
    """Waits for keys until ``timeout``, or until a rank is lost, which raises :class:`rueda.PeerLostError`.

    A store without a nonblocking ``check()``, such as one written in Python, is only waited for until ``timeout``.
    ``ranks``: the world ranks that write to the store. :meth:`get` raises :class:`rueda.ShutdownError` if one of them
    leaves the world; every method does if the rank that serves the store leaves.
    """

    def __init__(self, store: Store, timeout: timedelta, ranks: Sequence[int]) -> None:
        self._store = store
        self._timeout = timeout
        self._ranks = list(ranks)
        self._can_be_asked = _can_be_asked(store)

    def set(self, key: str, value: str) -> None:
        """Like the store's ``set()``."""
        self._ask(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes:
        """Like the store's ``get()``, except for how it waits."""
        self._wait([key], self._timeout, self._throw_if_one_has_left)
        return self._ask(lambda: self._store.get(key))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Like the store's ``wait()``, except for how it waits. Ignores ranks that have left the world cleanly."""
        self._wait(keys, timeout, lambda: None)

    def _wait(self, keys: list[str], timeout: timedelta, look: Callable[[], None]) -> None:
        if not self._can_be_asked:
            self._store.wait(keys, timeout)
        elif not self._look_until(keys, time.monotonic() + timeout.total_seconds(), look):
            self._store.wait(keys, timedelta(seconds=_SHORTEST))  # raises its timeout error

    def _look_until(self, keys: list[str], deadline: float, look: Callable[[], None]) -> bool:
        """Whether the keys exist by the deadline. ``look``: raises if they can no longer come."""
        pause = _FIRST_PAUSE
        while not self._are_there(keys):
            _native.throw_if_rank_is_lost()
            try:
                look()
            except ShutdownError:
                if self._are_there(keys):  # written before the rank left
                    return True
                raise
            rest = deadline - time.monotonic()
            if rest <= 0:
                return False
            time.sleep(min(pause, rest))
            pause = min(2 * pause, _MAX_PAUSE)
        return True

    def _are_there(self, keys: list[str]) -> bool:
        return self._ask(lambda: self._store.check(keys))

    def _throw_if_one_has_left(self) -> None:
        _native.throw_if_rank_has_left(self._ranks)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """Calls the store without waiting; if the store is gone, raises the error of the rank that served it."""
        try:
            return question()
        except (RuntimeError, dist.DistError):
            self._await_loss()
            raise

    def _await_loss(self) -> None:
        """Raises if the store has ended because its rank was lost or has left."""
        deadline = time.monotonic() + _NEWS
        while time.monotonic() < deadline:
            _native.throw_if_rank_is_lost()
            _native.throw_if_rank_has_left(list(range(_native.size())))
            time.sleep(_MAX_PAUSE)


def _can_be_asked(store: Store) -> bool:
    try:
        store.check(["rueda"])
    except (AttributeError, NotImplementedError, RuntimeError, dist.DistError):
        return False
    return True
