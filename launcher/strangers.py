"""Limits on connections that have not proved yet that they belong to the job, wherever the launcher listens.

That many connections cost little, do not keep ranks out for long, and do not keep the launcher from other work.
csrc/transport/strangers.h has the same for ranks.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import time
from collections.abc import Callable
from typing import Any

# Pending connections. If more come, the oldest is dropped. If all ranks may come at once, one more for each of them.
MAX_PENDING = 64
# Connections accepted before other work gets its turn.
MAX_ACCEPTED_AT_ONCE = 64
# Seconds until the next attempt if the process lacks descriptors. Nothing reports when one is free again.
BACK_OFF = 0.1

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Seconds between two lines on the same subject.
_PAUSE = 1.0


class LimitedSay:
    """Prints messages that others can cause at will: one line per second, with the number of omitted ones."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._clock = clock
        self._last: float | None = None
        self._left_out = 0

    def __call__(self, text: str) -> None:
        """Prints the text, or counts it as omitted."""
        now = self._clock()
        if self._last is not None and now - self._last < _PAUSE:
            self._left_out += 1
            return
        more = f" ({self._left_out} more like this before)" if self._left_out else ""
        self._last, self._left_out = now, 0
        self._say(text + more)


class Rejections(LimitedSay):
    """Reports rejected connections of one listener."""

    def __init__(self, door: str, say: Callable[[str], None]) -> None:
        """`door`: a prefix of the lines, or ""."""
        begin = f"{door}: " if door else ""
        super().__init__(lambda text: say(begin + text))

    def of_user(self, user: int) -> None:
        """A process of another user has connected."""
        self(f"rejected a connection of user {user}")

    def of_one_that(self, why: str, host: str = "") -> None:
        """`why`: what it has done, or failed to do. `host`: where it comes from."""
        origin = f" from {host}" if host else ""
        self(f"rejected a connection{origin} that {why}")


class Acceptor:
    """Accepts connections in the running loop, and lets other work have its turn however many come.

    If the system lacks a descriptor or memory for a connection, the listener would stay readable. It is then ignored
    for a moment, and `warn` gets a sentence.
    """

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket, Any], None],
        warn: Callable[[str], None],
        on_shortage: Callable[[], None] = lambda: None,
    ) -> None:
        """`take`: gets each connection and its peer's address. `on_shortage`: may free a descriptor."""
        self._listener = listener
        self._take = take
        self._warn = warn
        self._on_shortage = on_shortage
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        listener.setblocking(False)

    def open(self) -> None:
        """Begins, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self.accept)

    def close(self) -> None:
        """Closes the listener. Accepted connections stay open."""
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not None and self._is_open():
            self._loop.remove_reader(self._listener)
        self._listener.close()

    def accept(self, most: int = MAX_ACCEPTED_AT_ONCE) -> bool:
        """Accepts up to `most` waiting connections. Returns False if the system lacks the resources."""
        for _ in range(most):
            if not self._is_open():
                return True
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return True
            except (ConnectionAbortedError, InterruptedError):
                continue
            except OSError as error:
                if not self._somebody_waits():  # without descriptors, accept() fails in any case
                    return True
                self._back_off(error)
                return False
            self._take(connection, address)
        return True

    def _is_open(self) -> bool:
        return self._listener.fileno() >= 0

    def _somebody_waits(self) -> bool:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        return bool(poll.poll(0))

    def _back_off(self, error: OSError) -> None:
        self._warn(f"cannot accept connections for now: {error.strerror}")
        if error.errno in _SHORTAGES:
            self._on_shortage()
        if self._loop is not None and self._timer is None:
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(BACK_OFF, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self.open()
