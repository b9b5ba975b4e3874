"""Waiting at torch's store among ranks of a Rueda world: the store itself does not notice that a rank is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from rueda import _native
from rueda.errors import ShutdownError
from rueda.errors import TimeoutError as RuedaTimeoutError
from rueda.torch.c10d.work import DEADLINE, timed_out

__all__ = ["WatchedStore", "has_passed", "is_there", "not_formed"]

Answer = TypeVar("Answer")

# The first and the longest pause between polls, and the shortest timeout passed to a store; seconds.
_FIRST_PAUSE = 0.001
_MAX_PAUSE = 0.2
_SHORTEST = 0.01
# How long to wait until the world notices the loss of the rank that served the store; seconds.
_NEWS = 5.0


class WatchedStore:
    """Waits for what ``ranks``, of the world, write to the store.

    It raises :class:`rueda.TimeoutError` after ``timeout``, and :class:`rueda.PeerLostError` if a rank is lost. A store
    without a nonblocking ``check()``, such as one written in Python, is only waited for until ``timeout``.
    :meth:`gather` and :meth:`answer` raise :class:`rueda.ShutdownError` if one of the ranks leaves the world; every
    method does if the rank that serves the store leaves.
    """

    def __init__(self, store: Store, timeout: timedelta, ranks: Sequence[int]) -> None:
        self._store = store
        self._timeout = timeout
        self._ranks = list(ranks)
        self._can_be_asked = _can_be_asked(store)

    def set(self, key: str, value: str) -> None:
        """Like the store's ``set()``."""
        self._ask(lambda: self._store.set(key, value))

    def gather(self, name: str) -> list[bytes]:
        """What each of the ranks has set under ``name`` and its number, as ``name/0``."""
        return self._get([f"{name}/{rank}" for rank in self._ranks], name)

    def answer(self, key: str, name: str) -> bytes:
        """What the first rank sets once it has gathered ``name``."""
        (found,) = self._get([key], name)
        return found

    def _get(self, keys: list[str], name: str) -> list[bytes]:
        deadline = time.monotonic() + self._timeout.total_seconds()
        for place, key in enumerate(keys):
            if not self._wait([key], deadline, self._throw_if_one_has_left):
                raise not_formed(self._missing(name, place), self._timeout)
        return [self._ask(partial(self._store.get, key)) for key in keys]

    def _missing(self, name: str, awaited: int) -> list[int]:
        """The ranks that have not set ``name``; if all have, the one that has been awaited."""
        missing = [rank for rank in self._ranks if not is_there(self._store, f"{name}/{rank}")]
        return missing or [self._ranks[awaited]]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Like the store's ``wait()``, except for how it waits. Ignores ranks that have left the world cleanly."""
        if not self._wait(keys, time.monotonic() + timeout.total_seconds(), lambda: None):
            raise RuedaTimeoutError(
                f"{', '.join(keys)} have not been set. {timed_out(timeout.total_seconds())}",
                reason=DEADLINE,
            )

    def _wait(self, keys: list[str], deadline: float, look: Callable[[], None]) -> bool:
        """Whether the keys exist by the deadline."""
        if self._can_be_asked:
            return self._look_until(keys, deadline, look)
        rest = max(_SHORTEST, deadline - time.monotonic())
        try:
            self._store.wait(keys, timedelta(seconds=rest))
        except Exception:
            if has_passed(deadline):
                return False
            raise
        return True

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


def has_passed(deadline: float) -> bool:
    """Whether a store that has raised an error has waited until the deadline."""
    return time.monotonic() > deadline - _SHORTEST


def is_there(store: Store, key: str) -> bool:
    """Whether a key is set now."""
    try:
        return store.check([key])
    except (AttributeError, NotImplementedError, RuntimeError, dist.DistError):
        pass  # one written in Python need not have it
    try:
        store.wait([key], timedelta(seconds=_SHORTEST))
    except Exception:
        return False
    return True


def not_formed(missing: Sequence[int], timeout: timedelta) -> RuedaTimeoutError:
    """The error if these ranks have not done their part in time."""
    several = len(missing) > 1
    seconds = timeout.total_seconds()
    return RuedaTimeoutError(
        f"{'ranks' if several else 'rank'} {', '.join(map(str, missing))} {'have' if several else 'has'} not come "
        f"to form the process group within {seconds:g} s. {timed_out(seconds)}",
        None if several else missing[0],
        reason=DEADLINE,
    )


def _can_be_asked(store: Store) -> bool:
    try:
        store.check(["rueda"])
    except (AttributeError, NotImplementedError, RuntimeError, dist.DistError):
        return False
    return True
