"""Performs writes that may block, such as to a pipe that nobody reads, in a thread."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from .errors import RAISE_PROCESS_LIMITS, LaunchError

# Pending bytes above which producers should wait.
_ROOM = 1 << 20


class Writer:
    """Accepts writes immediately and performs them in order.

    Performs nothing before start(), so that ranks can be forked while there is only one thread. The
    thread does not keep the process from exiting, even if a write never returns.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], None]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._on_progress: Callable[[], None] = lambda: None
        # The first two belong to the thread that calls put(), the others to the writer's. None needs a lock.
        self._put = 0
        self._put_bytes = 0
        self._done = 0
        self._done_bytes = 0

    def put(self, size: int, write: Callable[[], None]) -> None:
        """Queues `write`, which writes `size` bytes."""
        self._put += 1
        self._put_bytes += size
        self._waiting.put((size, write))

    def start(self, on_progress: Callable[[], None]) -> None:
        """Starts the thread, which calls `on_progress` after each write. Idempotent. Raises LaunchError."""
        if self._thread is not None:
            return
        self._on_progress = on_progress
        thread = threading.Thread(target=self._run, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise LaunchError(
                f"the launcher cannot start a thread; start fewer ranks, or {RAISE_PROCESS_LIMITS}"
            ) from error
        self._thread = thread

    def write_here(self) -> None:
        """Performs pending writes in the caller's thread, if start() has not started one."""
        if self._thread is None:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._perform(*self._waiting.get_nowait())

    @property
    def is_full(self) -> bool:
        """Whether so much is pending that producers should wait."""
        return self._put_bytes - self._done_bytes >= _ROOM

    @property
    def is_done(self) -> bool:
        """Whether everything has been written."""
        return self._put == self._done

    def _run(self) -> None:
        while True:
            self._perform(*self._waiting.get())

    def _perform(self, size: int, write: Callable[[], None]) -> None:
        write()
        self._done_bytes += size
        self._done += 1
        self._on_progress()
