"""Where processes of a job that something else starts meet, including those that come later."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rueda.attendance import take_up
from rueda.errors import InitializationError
from rueda.launcher_session import Session
from rueda.reconnection import IsOver, Reconnection
from rueda.rendezvous import Meeting, listen_for, meeting_of, new_address

if TYPE_CHECKING:
    from rueda.launcher.elastic.reception import Desk

__all__ = ["Reception", "check_in"]

# Included in what is signed, so that a proof given here is useless elsewhere.
_PURPOSE = ["reception"]
# For the greeting, which a process answers immediately; seconds.
_GREETING = 10.0
# How long a process tries to reach the reception, and the longest pause between two attempts; seconds.
_REACHING = 60.0
_MAX_PAUSE = 1.0


class Reception:
    """Takes the role of ``rueda run`` in an elastic job whose processes are started by something else.

    A long-lived process keeps it: an engine's driver or controller. Whatever starts the ranks passes its ``address`` to
    each, the first ones and replacements of lost ones alike. All enter in the same way, with
    ``rueda.init(rank=rank, size=size, rendezvous=address)`` or :func:`rueda.world`. The first ``size`` of them form a
    world. Later ones wait until the others admit them, which :func:`steps`, :func:`run` and :func:`update` do; if
    nobody is left, ``size`` waiting processes form a new world. ``recovery`` is on in these worlds. When ranks have
    left theirs cleanly, those that still wait get :class:`rueda.InitializationError`.

    ``interface``: as for :func:`rueda.rendezvous.open`. The address contains the job's secret, as a rendezvous's does.
    A rank whose connection breaks reconnects. If the reception ends, the ranks continue, but nobody can join them.

    Raises what :func:`rueda.rendezvous.open` raises.

    Example::

        >>> with rueda.elastic.Reception(2, interface="127.0.0.1") as reception:
        ...     print(repr(reception.address).partition("://")[0])
        Address('rueda+reception
    """

    def __init__(self, size: int, interface: str = "") -> None:
        # Imported here: a child that is forked while a thread imports could never import anything.
        from rueda.launcher.elastic.reception import Desk
        from rueda.launcher.version import installed_version

        installed_version()  # imports the first time
        self._listener, where = listen_for(size, interface)
        self.address = new_address("reception", where, size)
        key = _key_of(meeting_of(0, size, self.address))
        self._new_desk: Callable[[], Desk] = lambda: Desk(self._listener, key, size)
        self._desk: Desk | None = None
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="rueda-reception", daemon=True)
        self._thread.start()
        _receptions.add(self)

    def close(self) -> None:
        """Ends the reception; may be called again."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join()

    def __enter__(self) -> Reception:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        async def serve() -> None:
            desk = self._desk = self._new_desk()
            await self._is_over.wait()
            desk.close()
            # Strangers in the middle of a greeting.
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*rest, return_exceptions=True)

        try:
            self._loop.run_until_complete(serve())
        finally:
            self._listener.close()
            self._loop.close()

    def _drop_copies(self) -> None:
        """In a forked child, where no thread serves the reception: closes the copies of its sockets.

        Ranks would otherwise not notice that the parent, and the reception with it, has ended.
        """
        self._listener.close()
        if self._desk is not None:
            self._desk.drop_copies()


# Those of this process, so that a forked child can close its copies of their sockets.
_receptions: weakref.WeakSet[Reception] = weakref.WeakSet()


def _drop_all_copies() -> None:
    for each in list(_receptions):
        each._drop_copies()
    _receptions.clear()


os.register_at_fork(after_in_child=_drop_all_copies)


def _key_of(meeting: Meeting) -> bytes:
    from rueda.launcher.nodes.greeting import key_of

    return key_of(meeting.secret, _PURPOSE)


def check_in(meeting: Meeting, rank: int) -> None:
    """Makes this process a part of the reception's job. Raises :class:`rueda.InitializationError`.

    Tries again for a minute if its connection breaks meanwhile.
    """
    from rueda.launcher.nodes.admission import Refused
    from rueda.launcher.nodes.greeting import Stranger, secret_of_ranks

    try:
        session = _reach(meeting, {"rank": rank})
    except Refused as refusal:
        raise InitializationError(str(refusal)) from None
    except Stranger:
        raise InitializationError(
            f"what answers at {meeting.where} is not the reception of this job"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InitializationError(
            f"the reception at {meeting.where} cannot be reached: {reason}"
        ) from None
    number = _number_told(session)
    again = Reconnection(lambda: _connect_again(meeting, {"rank": rank, "number": number}))
    take_up(number, session, secret_of_ranks(_key_of(meeting), "ranks"), again)


def _reach(meeting: Meeting, facts: dict[str, int]) -> Session:
    """Like _connect(), but tries again: where very many come at once, some have to make room for others."""
    deadline = time.monotonic() + _REACHING
    while True:
        try:
            return _connect(meeting, facts)
        except ConnectionRefusedError:
            raise  # nothing listens there any more
        except OSError:
            if time.monotonic() > deadline:
                raise
        # At random, so that they do not all come at once again; the application's generator is left alone.
        time.sleep(random.SystemRandom().uniform(0, _MAX_PAUSE))


def _connect(meeting: Meeting, facts: dict[str, int]) -> Session:
    """Raises OSError, Refused and Stranger."""
    from rueda.launcher.nodes.admission import be_admitted, notice_silence
    from rueda.launcher.version import installed_version

    host, _, port = meeting.where.removeprefix("tcp:").rpartition(":")
    own = {"version": installed_version(), "host": socket.gethostname()}
    link = be_admitted(host.strip("[]"), int(port), _key_of(meeting), {**own, **facts})
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_silence(link)
    except OSError:
        link.close()
        raise
    return Session(link)


def _connect_again(meeting: Meeting, facts: dict[str, int]) -> Session:
    """The ``connect`` function of Reconnection."""
    from rueda.launcher.nodes.admission import Refused
    from rueda.launcher.nodes.greeting import Stranger

    try:
        return _connect(meeting, facts)
    except (Refused, Stranger) as error:
        raise IsOver from error


def _number_told(session: Session) -> int:
    """The process number, which the reception sends first."""
    deadline = time.monotonic() + _GREETING
    while session.is_open and time.monotonic() < deadline:
        for message in session.receive():
            if isinstance(message.get("number"), int):
                return int(message["number"])
        session.wait(0.1)
    session.close()
    raise InitializationError("the reception of this job does not answer")
