"""Reconnects a session after its connection has broken."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rueda.launcher_session import Session

__all__ = ["IsOver", "Reconnection"]

# Pause before the first attempt, and longest pause between two; seconds.
_FIRST_PAUSE = 0.05
_MAX_PAUSE = 10.0


class IsOver(Exception):
    """The other side no longer exists, or does not accept this process again."""


class Reconnection:
    """Tries in a thread, so that nobody waits for it.

    ``connect``: raises ``OSError`` if another attempt may help, and :class:`IsOver` if none does.
    """

    def __init__(self, connect: Callable[[], Session]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._found: Session | None = None

    def begin(self) -> None:
        """Starts trying, unless it is already trying or has given up."""
        if self._thread is None and not self._is_over.is_set():
            self._thread = threading.Thread(
                target=self._try, name="rueda-reconnection", daemon=True
            )
            self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has given up or was closed."""
        return self._is_over.is_set()

    def take(self) -> Session | None:
        """The new session, if there is one; :meth:`begin` can then start again."""
        with self._lock:
            found, self._found = self._found, None
        if found is not None:
            self._thread = None
        return found

    def close(self) -> None:
        """Stops trying. Does not wait for an attempt in progress, whose result is discarded."""
        with self._lock:
            self._is_over.set()
            if self._found is not None:
                self._found.close()

    def _try(self) -> None:
        pause = _FIRST_PAUSE
        while not self._is_over.wait(pause):
            try:
                session = self._connect()
            except IsOver:
                self._is_over.set()
                return
            except OSError:
                pause = min(2 * pause, _MAX_PAUSE)
                continue
            with self._lock:
                if self._is_over.is_set():
                    session.close()
                else:
                    self._found = session
            return
