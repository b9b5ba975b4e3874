"""The launcher's part in a job whose processes another system starts: they connect over TCP and get numbers."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from typing import Any

from ..nodes.admission import notice_silence
from ..nodes.doorkeeper import Doorkeeper, Facts
from ..sessions import Session
from ..version import installed_version
from .attention import LOOK
from .company import Company
from .waiting_room import WaitingRoom

_log = logging.getLogger("rueda")


class Desk:
    """Admits processes that know the job's secret, informs them about each other, and lets the first ones meet."""

    def __init__(self, listener: socket.socket, key: bytes, size: int) -> None:
        """Works in the running loop from now on. `size`: the number of ranks with which a world starts."""
        self._room = WaitingRoom(size)
        self._company = Company(self._room, self._refuse, say=_say)
        self._sessions: dict[int, Session] = {}
        self._done: set[int] = set()  # processes that have reported this
        self._is_open = True
        self._door = Doorkeeper(
            listener, key, self._refusal, self._take, _warn, size, "the secret in its address"
        )
        self._door.open()
        self._loop = asyncio.get_running_loop()
        self._next_look = self._loop.call_later(LOOK, self._look_regularly)

    def close(self) -> None:
        """Closes all sessions. The ranks go on."""
        self._is_open = False
        self._next_look.cancel()
        self._door.close()
        for session in list(self._sessions.values()):
            session.close()

    def drop_copies(self) -> None:
        """In a forked child: closes the copies of all sockets. A copy would keep a connection open that has ended."""
        self._door.drop_copies()
        for session in self._sessions.values():
            session.drop_copy()

    def _refusal(self, facts: Facts) -> str:
        own, other = installed_version(), facts.get("version")
        if other != own:
            return f"the job has Rueda {own}, but host {facts.get('host')} has Rueda {other}: install the same version"
        rank, number = facts.get("rank"), facts.get("number")
        if not isinstance(rank, int):
            return f"{rank!r} is not a rank"
        if number is None or (self._room.knows(number) and number not in self._done):
            return ""
        return f"process {number!r} is not one of the ranks of the job"

    def _take(self, facts: Facts, link: socket.socket) -> None:
        """Takes a connection. `facts`: include the number of a process that reconnects after its link broke."""
        notice_silence(link)
        number = facts.get("number")
        if number is None:
            number = self._room.admit(facts["rank"], str(facts.get("host")))
        else:
            self._room.come_back(number)
        before = self._sessions.get(number)
        session = Session(link, b"", self._hear, self._forget)
        session.number = number
        self._sessions[number] = session
        if before is not None:
            before.close()  # its break has not been noticed here
        session.send(number=number)
        if session.is_open:
            self._company.hear(session, {"hello": number})

    def _hear(self, session: Session, message: dict[str, Any]) -> None:
        number = session.number
        if message.get("done") is True:
            self._done.add(number)
            session.close()
            return
        said = {name: told for name, told in message.items() if name not in ("hello", "endings")}
        if "ready" in said:
            said["ready"] = number
            tried = said.pop("after", None)
            self._room.is_outside(number, None if tried is None else str(tried))
        if "waits" in said:
            said["waits"] = number
        if "formed" in said and not self._room.knows(number):
            del said["formed"]  # it was expelled, and knows only the previous world
        if isinstance(door := said.get("door"), dict):
            self._room.meet_at(number, str(door.get("address")))
            self._room.show(_joiners_of(door), str(door.get("address")))
        self._company.hear(session, said)
        self._look()

    def _forget(self, session: Session) -> None:
        """The session has ended, and its process too, as far as is known here."""
        number = session.number
        self._company.forget(session)
        if self._sessions.get(number) is not session:
            return  # it has reconnected
        del self._sessions[number]
        self._room.ended(number, number in self._done, time.monotonic())
        if self._is_open:
            self._company.tell()
            self._loop.call_soon(self._look)

    def _look_regularly(self) -> None:
        self._company.look()
        self._next_look = self._loop.call_later(LOOK, self._look_regularly)

    def _look(self) -> None:
        """Does what has become due."""
        if not self._is_open:
            return
        first = self._room.begin()
        if first and first[0] in self._sessions:
            self._sessions[first[0]].send(begin={"numbers": first})
        for number in self._room.recall():
            if number in self._sessions:
                self._sessions[number].send(recall=True)
        for number in self._room.waiting_for_nothing:
            self._dismiss(number, done=True, why="the other ranks have finished the job")

    def _refuse(self, number: int) -> None:
        self._dismiss(
            number, done=False, why="the ranks of the job could not let this process join"
        )

    def _dismiss(self, number: int, **over: Any) -> None:
        if session := self._sessions.get(number):
            session.send(over=over)
            session.close()


def _say(text: str) -> None:
    _log.warning("reception: %s", text)


def _warn(text: str) -> None:
    _log.warning("the reception %s", text)


def _joiners_of(door: dict[str, Any]) -> list[int]:
    """The processes that should join through this door; empty if the message is invalid, which is not reported."""
    try:
        return [int(number) for number in door["joiners"]]
    except (KeyError, TypeError, ValueError):
        return []
