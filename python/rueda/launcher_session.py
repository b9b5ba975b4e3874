"""What a rank and its launcher tell each other: objects of JSON, a line each, both ways."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import time
from typing import Any

from rueda.json_objects import read_object
from rueda.peer_user import user_of

__all__ = ["Session", "process_number"]

# A line that is longer comes from nobody who means well.
_MAX_BYTES = 1 << 16
# The launcher takes connections at once, unless it is stopped; seconds.
_CONNECTING = 1.0


def process_number() -> int | None:
    """The number by which the launcher knows this process; nothing where no launcher has numbered it."""
    text = os.environ.get("RUEDA_JOINER") or os.environ.get("RUEDA_RANK")
    return int(text) if text else None


class Session:
    """A connection to the launcher, or to who has its part where something else has started the process.

    What the launcher says is looked for without a wait. When it is gone nothing more comes, and what is said to it is
    dropped: the job goes on without it.

    Raises ``OSError`` where the launcher cannot be reached, or is another user's.
    """

    def __init__(self, where: str | socket.socket, **greeting: Any) -> None:
        """``where``: its address, or a connection to it. ``greeting``: what is said first."""
        self._buffer = b""
        self._is_open = True
        self._socket = where if isinstance(where, socket.socket) else _connected(where)
        self._socket.setblocking(False)
        self._news = select.poll()
        self._news.register(self._socket, select.POLLIN)
        if greeting:
            self.send(**greeting)

    @property
    def is_open(self) -> bool:
        """Whether the launcher is there."""
        return self._is_open

    def send(self, **message: Any) -> None:
        """Says something; what the launcher has no room for ends the session."""
        if not self._is_open:
            return
        try:
            line = json.dumps(message).encode() + b"\n"
            if self._socket.send(line) < len(line):
                self.close()
        except OSError:
            self.close()

    def receive(self) -> list[dict[str, Any]]:
        """What has come since the last call.

        Members ask before each of their steps: where there is nothing that takes one system call and no exception.
        """
        if self._is_open and not self._news.poll(0):
            return []
        while self._is_open:
            try:
                piece = self._socket.recv(_MAX_BYTES)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self._buffer += piece
            if not piece or len(self._buffer) > _MAX_BYTES * 16:
                self.close()
        *lines, self._buffer = self._buffer.split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):
                messages.append(read_object(line))
        return messages

    def wait(self, seconds: float) -> None:
        """Returns when something has come, or after this time."""
        if self._is_open:
            news = select.poll()  # of its own: another thread may ask meanwhile
            news.register(self._socket, select.POLLIN)
            news.poll(seconds * 1000)
        else:
            time.sleep(seconds)

    def finish(self) -> None:
        """Ends it once the other side has taken what was said, or is silent for a second.

        A connection that is closed while something is left to be read drops what has not been sent.
        """
        if self._is_open:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
                self._socket.settimeout(_CONNECTING)
                while self._socket.recv(_MAX_BYTES):
                    pass
        self.close()

    def close(self) -> None:
        """Ends it."""
        self._is_open = False
        self._socket.close()


def _connected(address: str) -> socket.socket:
    """A connection to the launcher of this host, of the same user."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_CONNECTING)
    try:
        connection.connect(address.replace("@", "\0", 1))
        if user_of(connection) not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "the launcher's socket is another user's")
    except OSError:
        connection.close()
        raise
    return connection
