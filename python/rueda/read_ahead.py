"""A thread that reads ahead, and the time spent waiting for it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["ReadAhead"]

T = TypeVar("T")


class ReadAhead(Iterator[T]):
    """The items of ``source``, up to ``depth`` of which a thread keeps ready; it starts immediately.

    ``waited``: the seconds that :func:`next` has waited, ``first_wait`` of them for the first item. Exceptions from the
    source are raised by :func:`next`.
    """

    def __init__(self, source: Iterable[T], depth: int, thread: str) -> None:
        self.waited = 0.0
        self.first_wait: float | None = None
        self._items: deque[T] = deque()
        self._depth = depth
        self._changed = threading.Condition()
        self._unwanted = self._stopped = self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(source,), name=thread, daemon=True)
        self._thread.start()

    def __next__(self) -> T:
        begun = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended)
            took = time.perf_counter() - begun
            self.waited += took
            self.first_wait = took if self.first_wait is None else self.first_wait
            if self._items:
                self._changed.notify_all()
                return self._items.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def drain(self) -> None:
        """Reads the source to its end, discarding the items; returns when it has ended."""
        with self._changed:
            self._unwanted = True
            self._items.clear()
            self._changed.notify_all()
        self._thread.join()

    def stop(self) -> None:
        """Stops reading, and returns when the source is no longer in use."""
        self.forsake()
        self._thread.join()

    def forsake(self) -> None:
        """Stops reading without waiting: the source may be in use until it has yielded once more."""
        with self._changed:
            self._stopped = self._unwanted = True
            self._items.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """Returns when the source is no longer in use, because it has ended or after :meth:`forsake`."""
        self._thread.join()

    def _read(self, source: Iterable[T]) -> None:
        try:
            for item in source:
                with self._changed:
                    self._changed.wait_for(lambda: len(self._items) < self._depth or self._unwanted)
                    if self._stopped:
                        break
                    if not self._unwanted:
                        self._items.append(item)
                        self._changed.notify_all()
        except BaseException as error:  # reported to the consumer
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
