"""Torch's store, as ranks of Rueda's world wait at it: a store does not notice that one of them is lost."""

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

# Between two looks, at first and at most, and the least that a store is asked to wait; seconds.
_FIRST_PAUSE = 0.001
_MAX_PAUSE = 0.2
_SHORTEST = 0.01
# Within which the world notices a loss that has taken the store along; seconds.
_NEWS = 5.0


class WatchedStore:
    """Waits for keys until ``timeout``, or until a rank is lost, which raises :class:`rueda.PeerLostError`.

    At a store that cannot be asked without a wait, as one that is written in Python, only until ``timeout``.
    ``ranks``: who writes there; :meth:`get` raises :class:`rueda.ShutdownError` where one of them leaves the world, and
    all do where one leaves that has served the store.
    """

    def __init__(self, store: Store, timeout: timedelta, ranks: Sequence[int]) -> None:
        self._store = store
        self._timeout = timeout
        self._ranks = list(ranks)
        self._can_be_asked = _can_be_asked(store)

    def set(self, key: str, value: str) -> None:
        """As the store's."""
        self._ask(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes:
        """As the store's, but for the wait."""
        self._wait([key], self._timeout, self._throw_if_one_has_left)
        return self._ask(lambda: self._store.get(key))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """As the store's, but for how; who has left has done its part."""
        self._wait(keys, timeout, lambda: None)

    def _wait(self, keys: list[str], timeout: timedelta, look: Callable[[], None]) -> None:
        if not self._can_be_asked:
            self._store.wait(keys, timeout)
        elif not self._look_until(keys, time.monotonic() + timeout.total_seconds(), look):
            self._store.wait(keys, timedelta(seconds=_SHORTEST))  # raises what it does too late

    def _look_until(self, keys: list[str], deadline: float, look: Callable[[], None]) -> bool:
        """Whether they were there by then. ``look``: raises where they will not come any more."""
        pause = _FIRST_PAUSE
        while not self._are_there(keys):
            _native.throw_if_rank_is_lost()
            try:
                look()
            except ShutdownError:
                if self._are_there(keys):  # written before it left
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
        """What the store says to what it answers at once; where it has gone with a rank, raises what became of that."""
        try:
            return question()
        except (RuntimeError, dist.DistError):
            self._await_loss()
            raise

    def _await_loss(self) -> None:
        """Raises where the store has ended because its rank has."""
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
