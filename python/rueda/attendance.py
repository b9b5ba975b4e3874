"""What this process knows of a job whose ranks come and go, and who tells it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rueda import _native
from rueda.launcher_session import Session, process_number
from rueda.reconnection import Reconnection

if TYPE_CHECKING:
    from rueda.torch.replay import Shadow

__all__ = ["Attendance", "attendance", "leave", "secret", "take_up", "tell_formed"]

_log = logging.getLogger("rueda")


@dataclass
class Attendance:
    """Of this process, as the launcher or the reception (``rueda.elastic.Reception``) of its job tells it."""

    number: int = -1
    session: Session | None = None
    # Of a job with a reception: what its ranks prove to each other to know, and how it is reached again.
    secret: str = ""
    reconnection: Reconnection | None = None
    process: int = field(default_factory=os.getpid)  # not of its children
    # By the other side: who waits to join, who has ended before it could, and who is to leave.
    joiners: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    leaving: list[int] = field(default_factory=list)
    # Of each rank the number; nothing before it is known.
    members: list[int] = field(default_factory=list)
    # How the ranks of the present world have met.
    rendezvous: str = ""
    # What has come in the background while this process waited to join.
    received: Shadow | None = None
    # Whether this process has joined a job under way, and has not been given the others' state yet.
    is_newcomer: bool = False

    def listen(self) -> None:
        """Takes what has been said."""
        if self.session is None:
            return
        if not self.session.is_open:
            self.come_again()
        for message in self.session.receive():
            self.joiners = _numbers(message.get("joiners"), self.joiners)
            self.gone = _numbers(message.get("gone"), self.gone)
            self.leaving = _numbers(message.get("leaving"), self.leaving)

    @property
    def is_heard(self) -> bool:
        """Whether what this process says reaches the other side, as far as it knows."""
        return self.session is not None and self.session.is_open

    def tell_formed(self) -> None:
        """Says who the ranks of the world are."""
        if self.session is not None:
            self.session.send(formed={"members": self.members})

    @property
    def can_come_again(self) -> bool:
        """Whether this process may be heard again where it is not."""
        here = self.process == os.getpid()
        return here and self.reconnection is not None and not self.reconnection.is_over

    def come_again(self) -> None:
        """Takes the new session, where there is one, and has it looked for otherwise."""
        if self.reconnection is None or self.process != os.getpid():
            return
        found = self.reconnection.take()
        if found is None:
            self.reconnection.begin()
            return
        self.session = found
        if self.members and _native.rank() == 0:
            self.tell_formed()  # it may not have been heard

    def gone_of(self, joiners: Iterable[int]) -> list[int]:
        """Which of these have ended, as far as has been said."""
        self.listen()
        return [number for number in joiners if number in self.gone]


def _numbers(told: Any, before: list[int]) -> list[int]:
    if isinstance(told, list) and all(isinstance(each, int) for each in told):
        return sorted(told)
    return before


_here: Attendance | None = None


def attendance() -> Attendance:
    """Of this process; begun with the first use."""
    global _here
    if _here is None:
        _here = Attendance(rendezvous=os.environ.get("RUEDA_RENDEZVOUS", ""))
        number = process_number()
        address = os.environ.get("RUEDA_LAUNCHER", "")
        if os.environ.get("RUEDA_ELASTIC") == "1" and address and number is not None:
            _here.number = number
            try:
                _here.session = Session(address, hello=number)
            except OSError as error:
                _log.warning("the launcher cannot be reached, so that no ranks join: %s", error)
    return _here


def take_up(number: int, session: Session, secret: str, reconnection: Reconnection) -> None:
    """This process belongs to the job of a reception, which has given it this number."""
    global _here
    _here = Attendance(number, session, secret, reconnection)


def leave(done: bool) -> None:
    """This process takes no part in its reception's job any more. ``done``: because its work is done."""
    global _here
    if _here is None or not _here.secret or _here.session is None or _here.process != os.getpid():
        return
    if _here.reconnection is not None:
        if not _here.session.is_open:
            _here.session = _here.reconnection.take() or _here.session
        _here.reconnection.close()
    if done:
        _here.session.send(done=True)
    _here.session.finish()
    _here = None


def secret() -> str:
    """What the ranks of this process's job prove to each other to know."""
    return attendance().secret or os.environ.get("RUEDA_SECRET", "")


def tell_formed() -> None:
    """The launcher or reception hears who the ranks of the world are, of the first of them."""
    if _native.rank() == 0:
        attendance().tell_formed()
