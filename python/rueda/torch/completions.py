"""Threads that go on with operations while nobody waits for them."""

from __future__ import annotations

import atexit
import heapq
import threading
import time
from typing import Protocol

from rueda import _native

__all__ = ["Completable", "Completions"]

# Looks so often at least whether it is to end, in seconds.
MAX_WAIT = 60.0


class Completable(Protocol):
    """An operation made of several native ones."""

    deadline: float  # in time.monotonic()

    def natives(self) -> tuple[_native.Handle, ...]:
        """All of them."""

    def on_done(self) -> None:
        """Called once all are done."""

    def on_deadline(self) -> None:
        """Called when the deadline has passed before."""


class Completions:
    """Waits for operations in a thread called ``name``, which begins with the first and ends with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queue = _native.CompletionQueue()
        self._watched: dict[int, tuple[Completable, int]] = {}  # with the number of natives to come
        self._deadlines: list[tuple[float, int]] = []
        self._next = 0
        self._looks_at = (
            0.0  # when the thread looks at deadlines, in time.monotonic(), though nobody wakes it
        )
        self._thread: threading.Thread | None = None

    def add(self, operation: Completable) -> None:
        """Calls ``operation.on_done()``, or ``on_deadline()`` if that comes first, from the thread."""
        natives = operation.natives()
        with self._lock:
            token = self._next
            self._next += 1
            self._watched[token] = (operation, len(natives))
            too_late = operation.deadline < self._looks_at
            heapq.heappush(self._deadlines, (operation.deadline, token))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
                # Before the interpreter ends: a thread that comes back to it afterwards is killed in the midst of C++.
                atexit.register(self.close)
        for native in natives:
            self._queue.watch(native, token)
        if too_late:
            self._queue.nudge()

    def close(self) -> None:
        """Ends the thread. What has not completed by then never does."""
        self._queue.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            tokens = self._queue.wait(self._timeout())
            if not tokens and self._queue.is_closed():
                return
            for token in tokens:
                self._count(token)
            self._look_at_deadlines()

    def _timeout(self) -> float:
        with self._lock:
            now = time.monotonic()
            self._looks_at = now + MAX_WAIT
            if self._deadlines:
                self._looks_at = max(now, min(self._looks_at, self._deadlines[0][0]))
            return self._looks_at - now

    def _count(self, token: int) -> None:
        with self._lock:
            watched = self._watched.get(token)
            if watched is None:
                return
            operation, left = watched
            if left > 1:
                self._watched[token] = (operation, left - 1)
                return
            del self._watched[token]
        operation.on_done()

    def _look_at_deadlines(self) -> None:
        now = time.monotonic()
        late = []
        with self._lock:
            while self._deadlines:
                deadline, token = self._deadlines[0]
                if token in self._watched:
                    if deadline > now:
                        break
                    late.append(self._watched.pop(token)[0])
                heapq.heappop(self._deadlines)
        for operation in late:
            operation.on_deadline()
