"""Threads that go on with operations while nobody waits for them."""

from __future__ import annotations

import atexit
import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from rueda import _native

__all__ = ["Completable", "Completions"]

# Looks so often at least whether it is to end, in seconds.
MAX_WAIT = 60.0
# For how long one call may hold up those after it, in seconds: then another thread goes on with them.
PATIENCE = 0.002
# Threads that wait for something to do. With more of them, one that has nothing to do any more ends.
MAX_IDLE = 3
# For how long the end of the process waits for calls that are under way, before what they may wait for fails.
GRACE = 1.0


class Completable(Protocol):
    """An operation made of several native ones."""

    deadline: float  # in time.monotonic()

    def natives(self) -> tuple[_native.Handle, ...]:
        """All of them."""

    def on_done(self) -> None:
        """Called once all are done."""

    def on_deadline(self) -> None:
        """Called when the deadline has passed before."""

    def on_end(self) -> None:
        """Called, where anybody may wait for it still, when the process has ended before."""


class Completions:
    """Waits for operations in threads called ``name``, the first of which begins with the first operation.

    Calls are made one after another, so that they begin what they begin in one order, unless one takes long: it may
    wait for another operation. A thread that waits then goes on with the others, and the deadlines are watched in any
    case. So there are as many threads as calls that wait within each other, and up to ``MAX_IDLE`` more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queue = _native.CompletionQueue()
        self._watched: dict[
            int, tuple[Completable, int]
        ] = {}  # with how many parts of it are to come
        self._deadlines: list[tuple[float, int]] = []
        self._next = 0
        # When each thread that waits looks at deadlines, in time.monotonic(), though nobody wakes it.
        self._waiting: dict[threading.Thread, float] = {}
        self._due: deque[Callable[[], None]] = deque()
        self._turn: object | None = None  # of the thread that makes the calls that are due
        self._calls = 0  # that were begun
        self._under_way = 0
        self._supervisors = 0  # threads that see to it that what is due is not held up
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._process = os.getpid()

    def add(self, operation: Completable) -> None:
        """Calls ``operation.on_done()``, or ``on_deadline()`` if that comes first, from a thread."""
        natives = operation.natives()
        with self._lock:
            closed = self._closed
            if not closed:
                token = self._next
                self._next += 1
                self._watched[token] = (operation, sum(native.parts for native in natives))
                heapq.heappush(self._deadlines, (operation.deadline, token))
                if not self._threads:
                    self._process = os.getpid()
                    self._start_thread()
                    if not self._threads:
                        del self._watched[token]
                        raise RuntimeError(
                            "no thread can be started to complete futures: raise the limits of processes (ulimit -u, "
                            "or the container's pids limit)"
                        )
                    # Before the interpreter ends: a thread that comes back to it afterwards is killed in the midst of
                    # C++.
                    atexit.register(self.close)
        if closed:
            operation.on_end()
            return
        for native in natives:
            self._queue.watch(native, token)
        with self._lock:
            self._see_to_deadlines()

    def close(self) -> None:
        """Ends the threads. What has not completed by then never does, except where a call may wait for it."""
        if (
            os.getpid() != self._process
        ):  # a child, where there are no threads, and the lock may be held for ever
            return
        with self._lock:
            self._closed = True
            threads = self._threads - {threading.current_thread()}
        self._queue.close()
        end = time.monotonic() + GRACE
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._lock:
            left: list[Callable[[], None]] = []
            if self._under_way > 0:
                left = [*self._due, *(operation.on_end for operation, _ in self._watched.values())]
                self._due.clear()
                self._watched.clear()
        for call in left:
            call()
        for thread in threads:
            thread.join()

    # --- The threads

    def _start_thread(self) -> None:
        """With the lock held."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.add(thread)
        self._waiting[thread] = 0.0
        try:
            thread.start()
        except RuntimeError:  # no room for one, or no more at the end of the process
            self._threads.discard(thread)
            del self._waiting[thread]

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while self._wait(me):
                self._make_calls()
        finally:
            with self._lock:
                self._threads.discard(me)
                self._waiting.pop(me, None)

    def _wait(self, me: threading.Thread) -> bool:
        """Until there may be something to do; false where this thread is of no use any more."""
        with self._lock:
            if self._closed or len(self._waiting.keys() - {me}) >= MAX_IDLE:
                return False
            now = time.monotonic()
            looks_at = now + MAX_WAIT
            if self._deadlines:
                looks_at = max(now, min(looks_at, self._deadlines[0][0]))
            self._waiting[me] = looks_at
        tokens = self._queue.wait(looks_at - now)
        with self._lock:
            del self._waiting[me]
            for token in tokens:
                self._count(token)
            self._find_late()
            return bool(self._due) or not self._closed

    def _count(self, token: int) -> None:
        watched = self._watched.get(token)
        if watched is None:
            return
        operation, left = watched
        if left > 1:
            self._watched[token] = (operation, left - 1)
            return
        del self._watched[token]
        self._due.append(operation.on_done)

    def _find_late(self) -> None:
        now = time.monotonic()
        while self._deadlines:
            deadline, token = self._deadlines[0]
            if token in self._watched:
                if deadline > now:
                    break
                self._due.append(self._watched.pop(token)[0].on_deadline)
            heapq.heappop(self._deadlines)

    def _make_calls(self) -> None:
        """Makes those that are due, or sees to it that the thread whose turn it is makes them."""
        turn = object()
        with self._lock:
            if not self._supervise():
                return
            self._turn = turn
        try:
            while (call := self._next_call(turn)) is not None:
                try:
                    call()
                finally:
                    with self._lock:
                        self._under_way -= 1
                    # Its operation must not live until there is another one.
                    del call
        finally:
            with self._lock:
                if self._turn is turn:
                    self._turn = None
                    self._see_to_calls()

    def _supervise(self) -> bool:
        """Whether something is due that nobody else goes on with. With the lock held, which it gives up meanwhile."""
        self._supervisors += 1
        try:
            while self._due and self._turn is not None:
                calls = self._calls
                self._lock.release()
                try:
                    time.sleep(PATIENCE)
                finally:
                    self._lock.acquire()
                if self._calls == calls:
                    break
            return bool(self._due)
        finally:
            self._supervisors -= 1

    def _next_call(self, turn: object) -> Callable[[], None] | None:
        with self._lock:
            if self._turn is not turn or not self._due:
                return None
            call = self._due.popleft()
            self._calls += 1
            self._under_way += 1
            self._see_to_calls()
            self._see_to_deadlines()
            return call

    # Somebody is to look after what comes while a call is made. With the lock held.

    def _see_to_calls(self) -> None:
        if self._due and self._supervisors == 0:
            self._queue.nudge()

    def _see_to_deadlines(self) -> None:
        if self._closed:
            return
        if not self._waiting:
            if self._supervisors == 0:
                self._start_thread()
        elif self._deadlines and self._deadlines[0][0] < min(self._waiting.values()):
            self._queue.nudge()
