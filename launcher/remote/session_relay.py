"""Relays sessions between the launcher and the processes of a host over the connection between the two hosts."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from ..endings import Endings
from ..sessions import Session
from .frames import Frame, Kind

if TYPE_CHECKING:
    from .connection import Connection

# No host's ranks open more sessions than this.
_MAX_SESSIONS = 4096


class SessionRelay:
    """On the host: relays messages between its processes and the launcher."""

    def __init__(self, tell: Callable[[Kind, bytes, int], None], endings: Endings) -> None:
        """`tell`: sends a frame to the launcher. `endings`: tells processes here how others have ended."""
        self._tell = tell
        self._endings = endings
        self._sessions: dict[int, Session] = {}
        self._last = 0

    def accept(self, connection: socket.socket, begin: bytes) -> None:
        """Takes over a connection. `begin`: bytes already read from it."""
        if len(self._sessions) >= _MAX_SESSIONS:
            connection.close()
            return
        self._last += 1
        number = self._last

        def on_message(session: Session, message: dict[str, Any]) -> None:
            if message.get("endings") is True:
                self._endings.tell(session)
            else:
                self._tell(Kind.SESSION, json.dumps(message).encode(), number)

        session = Session(connection, begin, on_message, lambda gone: self._end(gone, number))
        if session.is_open:
            self._sessions[number] = session

    def take(self, frame: Frame) -> None:
        """Handles the launcher's message in one of the sessions."""
        session = self._sessions.get(frame.rank)
        if session is None:  # it has ended in the meantime
            return
        if frame.payload:
            session.send(**frame.json())
        else:
            session.close()

    def close(self) -> None:
        """Ends all sessions."""
        for session in list(self._sessions.values()):
            session.close()

    def _end(self, session: Session, number: int) -> None:
        self._endings.forget(session)
        self._sessions.pop(number, None)
        self._tell(Kind.SESSION, b"", number)


def speaks_for_others(message: dict[str, Any], ranks: Collection[int]) -> bool:
    """Whether a process claims a number that is not among the `ranks` of its host."""
    return any(
        name in message and message[name] not in ranks for name in ("hello", "ready", "waits")
    )


class RelayedSession:
    """In the launcher: the session with one process of a host."""

    def __init__(self, connection: Connection, key: int) -> None:
        """`key`: the host's number for the session."""
        self.number = -1
        self._connection = connection
        self._key = key

    def send(self, **message: Any) -> None:
        """Says something, as soon as the host takes it."""
        self._connection.send_json(Kind.SESSION, message, self._key)

    def close(self) -> None:
        """Ends it."""
        self._connection.send(Kind.SESSION, b"", self._key)


class EndingsForHost:
    """In the launcher: tells a host how processes on the other hosts have ended."""

    def __init__(self, connection: Connection) -> None:
        self.number = -1
        self._connection = connection

    def send(self, **message: Any) -> None:
        """Says something, as soon as the host takes it."""
        self._connection.send_json(Kind.ENDINGS, message)

    def close(self) -> None:
        """Nothing more is said."""
