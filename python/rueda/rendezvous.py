"""A meeting point for ranks that another program has started: Spark, Ray, a scheduler, a notebook.

One process opens a rendezvous and sends the others its address, by whatever means that program offers for small
messages. Then all enter a world there::

    address = rueda.rendezvous.open(size)  # rank 0; told to the others
    rueda.init(rank=rank, size=size, rendezvous=address)  # or with rueda.world(rank, size, address):

The port is open before anybody knows the address, so no rank can come too early. The address contains a secret made for
this world alone, so nobody else can enter it, and a retried task can never enter the world of an earlier attempt. Send
it through trusted channels only and keep it out of logs: its ``repr`` omits the secret.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
from dataclasses import dataclass, field
from functools import partial

from rueda import _native
from rueda.door import listen
from rueda.errors import InitializationError, InvalidArgumentError

__all__ = ["Address", "close", "open"]

_FORM = re.compile(
    r"rueda\+(?P<kind>tcp|reception)://(?P<secret>[0-9a-f]{64})@(?P<where>[^@/]+:[0-9]+)/(?P<size>[1-9][0-9]*)"
)

# By address: the sockets that this process has opened, until it enters a world there.
_listeners: dict[str, socket.socket] = {}
# By the hash of an address, so that no secret is kept: the cause of its closing. Kept because it may be set before the
# rank arrives; the oldest are dropped.
_causes: dict[bytes, str] = {}
_MAX_CAUSES = 64


class Address(str):
    """``rueda+tcp://SECRET@HOST:PORT/SIZE``: a string that any program can pass on.

    ``rueda+reception://`` instead is that of a :class:`rueda.elastic.Reception`.

    Example::

        >>> print(repr(rueda.rendezvous.Address("rueda+tcp://" + 64 * "f" + "@10.0.0.1:4711/4")))
        Address('rueda+tcp://...@10.0.0.1:4711/4')
    """

    __slots__ = ()

    def __repr__(self) -> str:
        scheme, _, rest = self.partition("://")
        return f"Address('{scheme}://...@{rest.rpartition('@')[2]}')"


@dataclass(frozen=True)
class Meeting:
    """The parts of an address: where, for how many ranks, and the secret that they prove to know."""

    address: str = field(repr=False)
    where: str  # tcp:HOST:PORT
    size: int
    secret: str = field(repr=False)
    is_reception: bool
    listener: socket.socket | None  # rank 0's listening socket


def open(size: int, interface: str = "") -> Address:
    """Opens a rendezvous for ``size`` ranks in this process, which must enter the world as rank 0; returns its address.

    ``interface``: the network interface, or an address of this host, at which other hosts reach it; by default
    ``RUEDA_INTERFACE``, else the address that the host's name resolves to, else the first interface, and without a
    network the loopback. An unused rendezvous is closed by :func:`close`, or when the process ends.

    Raises :class:`rueda.InvalidArgumentError` for a size that is not a positive whole number, and
    :class:`rueda.InitializationError` if the interface does not exist or cannot be listened on.

    Example::

        >>> address = rueda.rendezvous.open(4, interface="127.0.0.1")
        >>> rueda.rendezvous.close(address)
    """
    listener, where = listen_for(size, interface)
    address = new_address("tcp", where, size)
    _listeners[address] = listener
    return address


def listen_for(size: int, interface: str) -> tuple[socket.socket, str]:
    """The socket that :func:`open` opens, and its address; raises the same errors."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidArgumentError(f"a rendezvous is for one rank or more, not size={size!r}")
    try:
        return listen(interface)
    except OSError as error:
        raise InitializationError(f"no rendezvous can be opened: {error}") from error


def new_address(kind: str, where: str, size: int) -> Address:
    """An address with its own secret. ``where``: tcp:HOST:PORT, on which something already listens."""
    return Address(f"rueda+{kind}://{secrets.token_hex(32)}@{where.removeprefix('tcp:')}/{size}")


def close(address: str, cause: str | None = None) -> None:
    """Closes a rendezvous that this process opened and that nobody may enter any more; otherwise does nothing.

    With ``cause``, also closes one that another process opened, for this process: any of its threads that waits there,
    now or later, raises :class:`rueda.InitializationError` with that text and the ``reason`` ``"rendezvous_closed"``. A
    program that sees that a rank is lost calls it in the other ranks' processes, which would otherwise wait until
    ``init_timeout``. It does not end an existing world. A process keeps the last 64 causes.

    Raises :class:`rueda.InvalidArgumentError` for the address of a :class:`rueda.elastic.Reception`; use its own
    ``close()``.

    Example::

        >>> address = rueda.rendezvous.open(2, interface="127.0.0.1")
        >>> rueda.rendezvous.close(address, "rank 1 was lost")
        >>> rueda.shutdown()
        >>> rueda.init(rank=0, size=2, rendezvous=address)
        Traceback (most recent call last):
        rueda.errors.InitializationError: rank 1 was lost
        >>> rueda.init()
    """
    if (known := _FORM.fullmatch(address)) is not None and known["kind"] == "reception":
        raise InvalidArgumentError(
            f"{Address(address)!r} is a reception's address: the close() of its rueda.elastic.Reception ends it"
        )
    if cause is not None:
        _causes[_key_of(address)] = cause
        for oldest in list(_causes)[:-_MAX_CAUSES]:
            _causes.pop(oldest, None)
    if (listener := _listeners.pop(address, None)) is not None:
        listener.close()


def _check_open(address: str) -> None:
    if (cause := _causes.get(_key_of(address))) is not None:
        raise InitializationError(cause, reason="rendezvous_closed")


def _key_of(address: str) -> bytes:
    return hashlib.sha256(address.encode()).digest()


def meeting_of(rank: int, size: int, address: str) -> Meeting:
    """How rank ``rank`` of ``size`` is to enter; a process that opened the address can do so once.

    Raises :class:`rueda.InvalidArgumentError` for invalid arguments, before anything is sent, and
    :class:`rueda.InitializationError` if :func:`close` was given a cause.
    """
    known = _FORM.fullmatch(address) if isinstance(address, str) else None
    if known is None:  # the text is not shown: it may contain a secret
        raise InvalidArgumentError(
            "rendezvous= is an address that rueda.rendezvous.open() has returned, as a text"
        )
    if int(known["size"]) != size:
        raise InvalidArgumentError(
            f"the rendezvous was opened for a world of {known['size']}, and rank {rank} is to enter one of {size}"
        )
    where = f"tcp:{known['where']}"
    if known["kind"] == "reception":
        return Meeting(address, where, size, known["secret"], True, None)
    # Taken first: another thread may close the rendezvous at any moment, and stores the cause before it looks for this.
    listener = _listeners.pop(address, None) if rank == 0 else None
    try:
        _check_open(address)
    except InitializationError:
        if listener is not None:
            listener.close()
        raise
    if rank == 0 and listener is None:
        raise InvalidArgumentError(
            "rank 0 is the process that has called rueda.rendezvous.open(), once for each world: this one has not "
            f"opened {Address(address)!r}, or has used it already"
        )
    if rank != 0 and address in _listeners:
        raise InvalidArgumentError(
            f"rank 0 is the process that has called rueda.rendezvous.open(): this one is to be rank {rank}"
        )
    return Meeting(address, where, size, known["secret"], False, listener)


def enter(meeting: Meeting, rank: int, options: dict[str, str]) -> None:
    """Enters the world that forms at the meeting. Raises :class:`rueda.InitializationError`."""
    listener = -1 if meeting.listener is None else meeting.listener.fileno()
    look = partial(_check_open, meeting.address)
    try:
        _native.enter_world(
            rank, meeting.size, meeting.where, meeting.secret, listener, options, look
        )
        _causes.pop(_key_of(meeting.address), None)  # the address serves one world
    finally:
        if meeting.listener is not None:
            meeting.listener.close()
