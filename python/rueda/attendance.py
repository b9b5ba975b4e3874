"""What this process knows about its elastic job, and the session that reports it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rueda import _native
from rueda.launcher_session import Session, process_number
from rueda.probe_listener import ProbeListener
from rueda.reconnection import Reconnection

if TYPE_CHECKING:
    from rueda.torch.replay import Shadow

__all__ = ["Attendance", "attendance", "leave", "secret", "take_up", "tell_formed"]

_log = logging.getLogger("rueda")

# How long to wait for a probe: a part of the mean time between two looks, and seconds at most.
_PROBE_WAIT_SHARE = 0.01
_MAX_PROBE_WAIT = 1.0


@dataclass
class Attendance:
    """What the launcher or the reception (``rueda.elastic.Reception``) of the job has told this process."""

    number: int = -1
    session: Session | None = None
    # In a job with a reception: the secret that ranks prove to know, and how to reconnect.
    secret: str = ""
    reconnection: Reconnection | None = None
    process: int = field(default_factory=os.getpid)  # a forked child must not use this
    # From the other side: processes that wait to join, that ended before that, that do not answer while they wait, and
    # that are to leave.
    joiners: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    leaving: list[int] = field(default_factory=list)
    # Each rank's process number; empty until known.
    members: list[int] = field(default_factory=list)
    # Where joining processes prove that they can reach this one.
    probe_listener: ProbeListener = field(default_factory=ProbeListener)
    # How often it has looked for changes since then; counted, since the time is not read in each step.
    looks: int = 0
    counted_from: float = field(default_factory=time.monotonic)
    # How the ranks of the current world met.
    rendezvous: str = ""
    # State received in the background while this process waited to join.
    received: Shadow | None = None
    # Whether this process has joined a running job and still lacks the others' state.
    is_newcomer: bool = False
    # How many process sets those that it has joined passed to init(), if they have said so.
    sets_of_init: int | None = None

    def listen(self) -> None:
        """Processes messages that have arrived; reconnects if necessary."""
        if self.session is None:
            return
        if not self.session.is_open:
            self.come_again()
        for message in self.session.receive():
            self.joiners = _numbers(message.get("joiners"), self.joiners)
            self.gone = _numbers(message.get("gone"), self.gone)
            self.silent = _numbers(message.get("silent"), self.silent)
            self.leaving = _numbers(message.get("leaving"), self.leaving)
            self.hear_of_probes(message)
        if self.probe_listener.is_asked and self.session.is_open:
            self.probe_listener.answer(self.rendezvous.startswith("tcp:"), self.session.send)

    def hear_of_probes(self, message: dict[str, Any]) -> None:
        """Notes which processes are to prove that they can reach this one, once it is a rank."""
        if "probing" in message:
            self.probe_listener.hear(_numbers(message["probing"], []))

    def await_probe(self) -> None:
        """Called after this process has said where newcomers can probe whether they reach it.

        That takes milliseconds, and the next look for changes may follow in an hour: waits for it, if that costs next
        to nothing.
        """
        now = time.monotonic()
        pause = (now - self.counted_from) / max(1, self.looks)
        self.looks, self.counted_from = 0, now
        self.probe_listener.has_answered = False
        while self.probe_listener.probing and not self.joiners and self.is_heard:
            left = now + min(_MAX_PROBE_WAIT, _PROBE_WAIT_SHARE * pause) - time.monotonic()
            if left <= 0 or self.session is None:
                return
            self.session.wait(left)
            self.listen()

    @property
    def is_heard(self) -> bool:
        """Whether this process can reach the other side, as far as it knows."""
        return self.session is not None and self.session.is_open

    def tell_formed(self) -> None:
        """Reports the members of the world."""
        if self.session is not None:
            self.session.send(formed={"members": self.members})

    @property
    def can_come_again(self) -> bool:
        """Whether this process may still reconnect."""
        here = self.process == os.getpid()
        return here and self.reconnection is not None and not self.reconnection.is_over

    def come_again(self) -> None:
        """Switches to the new session if there is one; otherwise starts reconnecting."""
        if self.reconnection is None or self.process != os.getpid():
            return
        found = self.reconnection.take()
        if found is None:
            self.reconnection.begin()
            return
        self.session = found
        self.probe_listener.ask_again()
        if self.members and _native.rank() == 0:
            self.tell_formed()  # the earlier report may have been lost

    def absent_of(self, joiners: Iterable[int]) -> list[int]:
        """Which of ``joiners`` have ended or do not answer, as far as has been reported."""
        self.listen()
        return [number for number in joiners if number in self.gone or number in self.silent]


def _numbers(told: Any, before: list[int]) -> list[int]:
    if isinstance(told, list) and all(isinstance(each, int) for each in told):
        return sorted(told)
    return before


_here: Attendance | None = None


def attendance() -> Attendance:
    """This process's attendance, created on first use."""
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
                _log.warning("the launcher cannot be reached, so no ranks can join: %s", error)
    return _here


def take_up(number: int, session: Session, secret: str, reconnection: Reconnection) -> None:
    """Makes this process number ``number`` of a reception's job."""
    global _here
    _here = Attendance(number, session, secret, reconnection)


def leave(done: bool) -> None:
    """Ends this process's part in its reception's job. ``done``: because its work is done."""
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
    """The secret that the ranks of this process's job prove to each other to know."""
    return attendance().secret or os.environ.get("RUEDA_SECRET", "")


def tell_formed() -> None:
    """Rank 0 reports the members of the world to the launcher or reception."""
    if _native.rank() == 0:
        attendance().tell_formed()
