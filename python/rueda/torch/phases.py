"""Operations in phases, each of which starts once the previous one has completed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from rueda import _native
from rueda.handles import Handle, late
from rueda.torch.completions import Completions

__all__ = ["Phased", "Steps"]

T = TypeVar("T")

Steps = Generator[Sequence[Handle[Any]], list[Any], T]
"""Yields the operations of a phase, is sent their results, and returns what the whole comes to."""


class Phased(Handle[T]):
    """The handle of such an operation.

    Whichever notices that a phase has completed starts the next: the waiting caller or, with ``completions``, its
    thread. So operations advance in whatever order ranks wait for them, even if nobody waits.
    """

    deadline = math.inf  # see Completable

    def __init__(
        self,
        steps: Steps[T],
        completions: Completions | None = None,
    ) -> None:
        self._steps = steps
        self._completions = completions
        self._lock = threading.Lock()
        self._ended = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._followers: list[Callable[[], object]] = []
        self._under_way: Sequence[Handle[Any]] = next(steps)
        with self._lock:
            self._watch()

    def done(self) -> bool:
        """See Handle."""
        self._advance()
        return self._ended

    def wait(self, timeout: float | None = None) -> bool:
        """See Handle."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._ended:
            for handle in self._under_way:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not handle.wait(left):
                    return False
            self._advance()
        return True

    def result(self, timeout: float | None = None) -> T:
        """See Handle."""
        if not self.wait(timeout):
            raise late(timeout)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # set together with _ended

    def when_ended(self, call: Callable[[], object]) -> None:
        """Calls it once this has ended, from the thread that finds out."""
        with self._lock:
            if not self._ended:
                self._followers.append(call)
                return
        call()

    def natives(self) -> tuple[_native.Handle, ...]:
        """See Completable."""
        return self._submitted()

    def on_done(self) -> None:
        """See Completable."""
        self._advance()

    def on_deadline(self) -> None:
        """See Completable: never called, as the core has its own deadline."""

    def on_end(self) -> None:
        """See Completable: callers wait only in :meth:`wait`."""

    def _submitted(self) -> tuple[_native.Handle, ...]:
        return tuple(native for handle in self._under_way for native in handle._submitted())

    def _is_over(self) -> bool:
        return self._ended

    def _advance(self) -> None:
        """Starts the next phase if this one has completed."""
        for follower in self._advanced():
            follower()

    def _advanced(self) -> Sequence[Callable[[], object]]:
        """Advances; returns the functions to call if this has ended."""
        with self._lock:
            if self._ended or not all(handle.done() for handle in self._under_way):
                return ()
            try:
                self._under_way = self._steps.send([each.result() for each in self._under_way])
            except StopIteration as stop:
                self._value = stop.value
                self._ended = True
            except Exception as error:
                self._error = error
                self._ended = True
            except BaseException as error:  # such as Ctrl-C
                self._error = error
                self._ended = True
                raise
            finally:
                if self._ended:
                    self._under_way = ()
            if not self._ended:
                self._watch()
                return ()
            followers, self._followers = self._followers, []
        return followers

    def _watch(self) -> None:
        """Called once per phase, while no other thread can end it."""
        if self._completions is not None:
            self._completions.add(self)
