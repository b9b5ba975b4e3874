"""Messages between a rank and its launcher: JSON objects, one per line, both ways."""

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

# A longer line is from a misbehaving peer.
_MAX_BYTES = 1 << 16
# The launcher accepts connections immediately, unless it is stopped; seconds.
_CONNECTING = 1.0


def process_number() -> int | None:
    """The launcher's number for this process; ``None`` if no launcher has numbered it."""
    text = os.environ.get("RUEDA_JOINER") or os.environ.get("RUEDA_RANK")
    return int(text) if text else None


class Session:
    """A connection to the launcher, or to what takes its role if something else started the process.

    Messages from the launcher are polled without blocking. Once it is gone, nothing more arrives, and messages to it
    are dropped: the job continues without it.

    Raises ``OSError`` if the launcher cannot be reached or belongs to another user.
    """

    def __init__(self, where: str | socket.socket, **greeting: Any) -> None:
        """``where``: its address, or a connection to it. ``greeting``: the first message."""
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
        """Whether the connection to the launcher is open."""
        return self._is_open

    def send(self, **message: Any) -> None:
        """Sends a message; ends the session if the launcher has no room for it."""
        if not self._is_open:
            return
        try:
            line = json.dumps(message).encode() + b"\n"
            if self._socket.send(line) < len(line):
                self.close()
        except OSError:
            self.close()

    def has_room(self) -> bool:
        """Whether a message can be sent now. Not if the launcher does not read, as while it is stopped."""
        room = select.poll()
        with contextlib.suppress(ValueError, OSError):  # another thread may close the connection
            room.register(self._socket, select.POLLOUT)
            return any(events & select.POLLOUT for _, events in room.poll(0))
        return False

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived since the last call.

        Members call this before each step: if there is nothing, it takes one system call and no exception.
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
        """Returns when something has arrived, or after ``seconds``."""
        if self._is_open:
            news = select.poll()  # a separate object: another thread may poll meanwhile
            news.register(self._socket, select.POLLIN)
            news.poll(seconds * 1000)
        else:
            time.sleep(seconds)

    def finish(self) -> None:
        """Closes the session once the other side has read all messages, or after a second of silence.

        Closing a connection with unread input would drop unsent data.
        """
        if self._is_open:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
                self._socket.settimeout(_CONNECTING)
                while self._socket.recv(_MAX_BYTES):
                    pass
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._is_open = False
        self._socket.close()


def _connected(address: str) -> socket.socket:
    """A connection to the launcher on this host, which must belong to the same user or root."""
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
