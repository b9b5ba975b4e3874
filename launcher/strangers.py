"""What is granted to connections that have not shown yet that they belong to the job, wherever the launcher listens.

So many at once cost little, keep no rank out for long, and keep the launcher from nothing else. For ranks,
csrc/transport/strangers.h has the same.
"""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import time
from collections.abc import Callable
from typing import Any

# At once; where more come, the oldest makes room. Where all ranks may come at the same time, one more for each of them.
MAX_PENDING = 64
# Who serves other things as well takes no more connections than this before it looks at those.
MAX_ACCEPTED_AT_ONCE = 64
# When to try again where the process lacks descriptors: nothing tells when one is free again; seconds.
BACK_OFF = 0.1

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# Between two lines about the same; seconds.
_PAUSE = 1.0


class LimitedSay:
    """Says what others can cause as often as they like: one line a second, with the number of those left out."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._clock = clock
        self._last: float | None = None
        self._left_out = 0

    def __call__(self, text: str) -> None:
        """Says it, or counts it."""
        now = self._clock()
        if self._last is not None and now - self._last < _PAUSE:
            self._left_out += 1
            return
        more = f" ({self._left_out} more like this before)" if self._left_out else ""
        self._last, self._left_out = now, 0
        self._say(text + more)


class Rejections(LimitedSay):
    """Says of one door what comes to it in vain."""

    def __init__(self, door: str, say: Callable[[str], None]) -> None:
        """`door`: what the lines begin with, if anything."""
        begin = f"{door}: " if door else ""
        super().__init__(lambda text: say(begin + text))

    def of_user(self, user: int) -> None:
        """A process of another user has come."""
        self(f"rejected a connection of user {user}")

    def of_one_that(self, why: str, host: str = "") -> None:
        """`why`: what it has done, or failed to do. `host`: from which it has come."""
        origin = f" from {host}" if host else ""
        self(f"rejected a connection{origin} that {why}")


class Acceptor:
    """Accepts connections in the running loop, and lets others have their turn however many come.

    Where the system lacks a descriptor or memory for one, the listener stays readable all the while: it is not
    looked at for a moment, and `warn` gets a sentence.
    """

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket, Any], None],
        warn: Callable[[str], None],
        on_shortage: Callable[[], None] = lambda: None,
    ) -> None:
        """`take`: gets each connection, and the address of its other end. `on_shortage`: may free a descriptor."""
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
        """Closes the listener; those that were taken stay connected."""
        if self._timer is not None:
            self._timer.cancel()
        if self._loop is not None and self._is_open():
            self._loop.remove_reader(self._listener)
        self._listener.close()

    def accept(self, most: int = MAX_ACCEPTED_AT_ONCE) -> bool:
        """Takes so many of those that wait; returns False where the system lacks what that takes."""
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
                if not self._somebody_waits():  # without descriptors accept() does not look
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
        self._warn(f"cannot take a connection for now: {error.strerror}")
        if error.errno in _SHORTAGES:
            self._on_shortage()
        if self._loop is not None and self._timer is None:
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(BACK_OFF, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self.open()
