"""Where processes of a job that something else starts meet, including those that come later."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import TracebackType

from rueda.attendance import take_up
from rueda.errors import InitializationError
from rueda.launcher_session import Session
from rueda.reconnection import IsOver, Reconnection
from rueda.rendezvous import Meeting, listen_for, meeting_of, new_address

__all__ = ["Reception", "check_in"]

# Included in what is signed, so that a proof given here is useless elsewhere.
_PURPOSE = ["reception"]
# For the greeting, which a process answers immediately; seconds.
_GREETING = 10.0


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
        self._listener, where = listen_for(size, interface)
        self.address = new_address("reception", where, size)
        self._size = size
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="rueda-reception", daemon=True)
        self._thread.start()

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
        from rueda.launcher.elastic.reception import Desk

        async def serve() -> None:
            meeting = meeting_of(0, self._size, self.address)
            desk = Desk(self._listener, _key_of(meeting), self._size)
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


def _key_of(meeting: Meeting) -> bytes:
    from rueda.launcher.nodes.greeting import key_of

    return key_of(meeting.secret, _PURPOSE)


def check_in(meeting: Meeting, rank: int) -> None:
    """Makes this process a part of the reception's job. Raises :class:`rueda.InitializationError`."""
    from rueda.launcher.nodes.admission import Refused
    from rueda.launcher.nodes.greeting import Stranger, secret_of_ranks

    try:
        session = _connect(meeting, {"rank": rank})
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
