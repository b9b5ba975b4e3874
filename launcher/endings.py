"""Tells the ranks that are left how others have ended, which only the parent of a process gets to know."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any

from .failure import Failure
from .sessions import Session, Talk

# So many ends are remembered, the last ones: what is told of them at once fits what a session may keep unread.
_REMEMBERED = 256
# More sessions than any job's ranks open at a time come from nobody who means well.
_SESSIONS = 4096


class Endings:
    """How processes of the job have ended.

    A rank asks over a session, with ``{"endings": true}``, and is told what is known and whatever comes later:
    ``{"ended": [{"host": "node1", "pid": 4711, "status": -9, "how": "killed by SIGKILL (Killed)"}]}``. The status is
    negative for a signal.
    """

    def __init__(self, on_question: Callable[[], None] | None = None) -> None:
        """`on_question`: called when somebody asks for the first time."""
        self._on_question = on_question
        self._known: list[dict[str, Any]] = []
        self._listeners: list[Talk] = []

    def accept(self, connection: socket.socket, begin: bytes) -> None:
        """Takes a connection of which `begin` has been read, of ranks that ask for nothing else."""
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
        """Of processes that others have seen end; what is known already is not told again."""
        fresh = [ending for ending in endings if ending not in self._known]
        self._known = [*self._known, *fresh][-_REMEMBERED:]
        for listener in list(self._listeners) if fresh else ():
            listener.send(ended=fresh)

    def tell(self, session: Talk) -> None:
        """From now on this rank is told, or all of a host."""
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
        """Ends all sessions of ranks that are told."""
        for listener in list(self._listeners):
            listener.close()

    def _take(self, session: Session, message: dict[str, Any]) -> None:
        if message.get("endings") is True:
            self.tell(session)
        else:
            session.close()
