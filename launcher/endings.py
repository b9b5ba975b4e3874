"""Tells the remaining ranks how others have ended, which only the parent of a process learns."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any

from .failure import Failure
from .sessions import Session, Talk

# How many of the latest ends are remembered. A message about all of them fits a session's limit for unread bytes.
_REMEMBERED = 256
# No job's ranks open more sessions than this at a time.
_SESSIONS = 4096


class Endings:
    """How processes of the job have ended.

    A rank asks over a session with ``{"endings": true}``. It is told what is known, and whatever comes later:
    ``{"ended": [{"host": "node1", "pid": 4711, "status": -9, "how": "killed by SIGKILL (Killed)"}]}``. The status is
    negative for a signal.
    """

    def __init__(self, on_question: Callable[[], None] | None = None) -> None:
        """`on_question`: called at the first question."""
        self._on_question = on_question
        self._known: list[dict[str, Any]] = []
        self._listeners: list[Talk] = []

    def accept(self, connection: socket.socket, begin: bytes) -> None:
        """Takes over a connection of a rank that asks for nothing else. `begin`: bytes already read from it."""
        Session(connection, begin, self._take, self.forget)

    def note(self, process_id: int, failure: Failure) -> None:
        """A process has ended."""
        ending = {
            "host": failure.host,
            "pid": process_id,
            "status": failure.status,
            "how": failure.describe_status(),
        }
        self.learn([ending])

    def learn(self, endings: Iterable[dict[str, Any]]) -> None:
        """Adds ends that others have seen. Ends that are already known are not reported again."""
        fresh = [ending for ending in endings if ending not in self._known]
        self._known = [*self._known, *fresh][-_REMEMBERED:]
        for listener in list(self._listeners) if fresh else ():
            listener.send(ended=fresh)

    def tell(self, session: Talk) -> None:
        """From now on reports to this session, of one rank or of all ranks of a host."""
        if session in self._listeners:
            return
        if len(self._listeners) >= _SESSIONS:
            session.close()
            return
        self._listeners.append(session)
        session.send(ended=self._known)
        if self._on_question is not None:
            on_question, self._on_question = self._on_question, None
            on_question()

    def forget(self, session: Talk) -> None:
        """The session has ended."""
        if session in self._listeners:
            self._listeners.remove(session)

    def close(self) -> None:
        """Closes the sessions of all ranks that are told."""
        for listener in list(self._listeners):
            listener.close()

    def _take(self, session: Session, message: dict[str, Any]) -> None:
        if message.get("endings") is True:
            self.tell(session)
        else:
            session.close()
