"""Torch's store, as ranks of Rueda's world wait at it: a store does not notice that one of them is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from rueda import _native

__all__ = ["WatchedStore"]

Answer = TypeVar("Answer")

# Between two looks, at first and at most, and the least that a store is asked to wait; seconds.
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.2
_SHORTEST = 0.01
# Within which the world notices a loss that has taken the store along; seconds.
_NEWS = 5.0


class WatchedStore:
    """Waits for keys until ``timeout``, or until a rank is lost, which raises :class:`rueda.PeerLostError`.

    At a store that cannot be asked without a wait, as one that is written in Python, only until ``timeout``.
    """

    def __init__(self, store: Store, timeout: timedelta) -> None:
        self._store = store
        self._timeout = timeout
        self._can_be_asked = _can_be_asked(store)

    def set(self, key: str, value: str) -> None:
        """As the store's."""
        self._ask(lambda: self._store.set(key, value))

    def get(self, key: str) -> bytes:
        """As the store's, but for the wait."""
        self.wait([key], self._timeout)
        return self._ask(lambda: self._store.get(key))

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """As the store's, but for how."""
        if not self._can_be_asked:
            self._store.wait(keys, timeout)
        elif not self._look_until(keys, time.monotonic() + timeout.total_seconds()):
            self._store.wait(keys, timedelta(seconds=_SHORTEST))  # raises what it does too late

    def _look_until(self, keys: list[str], deadline: float) -> bool:
        """Whether they were there by then."""
        pause = _FIRST_PAUSE
        while not self._ask(lambda: self._store.check(keys)):
            _native.throw_if_rank_is_lost()
            rest = deadline - time.monotonic()
            if rest <= 0:
                return False
            time.sleep(min(pause, rest))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """What the store says to what it answers at once; raises as wait() where it has gone with a lost rank."""
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
            time.sleep(_LONGEST_PAUSE)


def _can_be_asked(store: Store) -> bool:
    try:
        store.check(["rueda"])
    except (AttributeError, NotImplementedError, RuntimeError, dist.DistError):
        return False
    return True
