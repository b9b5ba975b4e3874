"""Messages between the launcher and the ranks: JSON objects, one per line, in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any, Protocol

from rueda.json_objects import read_object

# The limit on a line, and on what a rank has not read. A line may name each rank of a job twice.
_MAX_BYTES = 1 << 20
_PIECE = 1 << 16


class Talk(Protocol):
    """The launcher's session with one process, on this or another host."""

    number: int  # of the process, once it has said it

    def send(self, **message: Any) -> None:
        """Says something."""

    def close(self) -> None:
        """Ends it."""


class Session:
    """A connection to one process. Its first message says its number.

    It ends if the process sends invalid data, or does not read.
    """

    def __init__(
        self,
        connection: socket.socket,
        begin: bytes,
        on_message: Callable[[Session, dict[str, Any]], None],
        on_end: Callable[[Session], None],
    ) -> None:
        """`begin`: bytes already read from the connection."""
        self.number = -1
        self._connection = connection
        self._on_message = on_message
        self._on_end = on_end
        self._read = b""
        self._unsent = b""
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._receive)
        self._take(begin)

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended it."""
        return self._is_open

    def send(self, **message: Any) -> None:
        """Says something, now or when the process reads."""
        if not self._is_open:
            return
        self._unsent += json.dumps(message).encode() + b"\n"
        self._flush()

    def close(self) -> None:
        """Ends it."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        with contextlib.suppress(OSError):  # the process may have broken it
            # It ends also if a child of this process, forked meanwhile, has a copy.
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._on_end(self)

    def drop_copy(self) -> None:
        """In a forked child: closes the copy of the connection, which its parent keeps."""
        self._is_open = False
        self._connection.close()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            if len(self._unsent) > _MAX_BYTES:
                self.close()
            else:
                self._loop.add_writer(self._connection, self._flush)
            return
        except OSError:
            self.close()
            return
        self._loop.remove_writer(self._connection)

    def _receive(self) -> None:
        try:
            piece = self._connection.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece:
            self._take(piece)
        else:
            self.close()

    def _take(self, piece: bytes) -> None:
        *lines, self._read = (self._read + piece).split(b"\n")
        if len(self._read) > _MAX_BYTES:
            self.close()
        for line in lines:
            if not self._is_open:
                return
            try:
                message = read_object(line)
            except ValueError:
                self.close()
                return
            self._on_message(self, message)
