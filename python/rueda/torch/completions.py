"""Threads that advance operations while nobody waits for them."""

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

# A thread checks at least this often whether to end, in seconds.
MAX_WAIT = 60.0
# How long one call may delay those after it, in seconds, before another thread takes over.
POLL_PAUSE = 0.002
# Threads that wait for work. If there are more, a thread without work ends.
MAX_IDLE = 3
# How long the end of the process waits for running calls before what they may wait for fails; seconds.
GRACE = 1.0


class Completable(Protocol):
    """An operation that consists of several native ones."""

    deadline: float  # in time.monotonic()

    def natives(self) -> tuple[_native.Handle, ...]:
        """All native operations."""

    def on_done(self) -> None:
        """Called once all are done."""

    def on_deadline(self) -> None:
        """Called if the deadline passes first."""

    def on_end(self) -> None:
        """Called if the process ends first, and if anything may still wait for the operation."""


class Completions:
    """Waits for operations in threads named ``name``; the first one starts with the first operation.

    Calls are made one after another, so that the operations they start have one order. A call that takes long may be
    waiting for another operation: another thread then takes over the remaining calls. Deadlines are watched in any
    case. So there are as many threads as there are calls that wait for one another, and up to ``MAX_IDLE`` more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queue = _native.CompletionQueue()
        self._watched: dict[
            int, tuple[Completable, int]
        ] = {}  # with the number of parts still to complete
        self._deadlines: list[tuple[float, int]] = []
        self._next = 0
        # When each waiting thread will next check deadlines, in time.monotonic(), if nobody wakes it.
        self._waiting: dict[threading.Thread, float] = {}
        self._due: deque[Callable[[], None]] = deque()
        self._turn: object | None = None  # of the thread that makes the calls that are due
        self._calls = 0  # started so far
        self._under_way = 0
        self._supervisors = 0  # threads that watch whether due calls are delayed
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
                            "no thread can be started to complete futures: raise the limit on processes (ulimit -u, "
                            "or the container's pids limit) or on virtual memory (ulimit -v)"
                        )
                    # Before the interpreter ends: a thread that returns to the interpreter afterwards is killed in the
                    # middle of C++ code.
                    atexit.register(self.close)
        if closed:
            operation.on_end()
            return
        for native in natives:
            self._queue.watch(native, token)
        with self._lock:
            self._see_to_deadlines()

    def close(self) -> None:
        """Ends the threads. Operations not completed by then never do, except those that a call may be waiting for."""
        if (
            os.getpid() != self._process
        ):  # a child has no threads, and its lock may stay locked forever
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
        except RuntimeError:  # no resources for a thread, or the process is ending
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
        """Waits until there may be work; false if this thread is no longer needed."""
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
        """Makes the calls that are due, or makes sure that the thread whose turn it is does."""
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
                    # Release its operation now, not at the next one.
                    del call
        finally:
            with self._lock:
                if self._turn is turn:
                    self._turn = None
                    self._see_to_calls()

    def _supervise(self) -> bool:
        """Whether a call is due that no other thread handles. With the lock held; releases it meanwhile."""
        self._supervisors += 1
        try:
            while self._due and self._turn is not None:
                calls = self._calls
                self._lock.release()
                try:
                    time.sleep(POLL_PAUSE)
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

    # Ensure that some thread handles what arrives during a call. With the lock held.

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
