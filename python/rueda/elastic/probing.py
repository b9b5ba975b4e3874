"""How a process that is to join proves, before the ranks stop for it, that it can open connections to all of them."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rueda.endpoints import endpoint_of

__all__ = ["Place", "unreached"]

# How long the ranks' systems may take to accept the connections, which takes one repetition of a lost packet; seconds.
_TIMEOUT = 3.0


@dataclass(frozen=True)
class Place:
    """Where a process can be reached."""

    number: int
    host: str
    address: str


def unreached(places: Sequence[Place], timeout: float = _TIMEOUT) -> dict[int, str]:
    """For each process that cannot be reached, a sentence that says where, and why not.

    Opens connections to all at once, and closes them.
    """
    why: dict[int, str] = {}
    with selectors.DefaultSelector() as waiting:
        try:
            for place in places:
                try:
                    waiting.register(_begun(place.address), selectors.EVENT_WRITE, place)
                except (OSError, ValueError) as error:
                    why[place.number] = _sentence(place, str(error))
            deadline = time.monotonic() + timeout
            while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
                for key, _ in waiting.select(left):
                    place, link = key.data, key.fileobj
                    assert isinstance(link, socket.socket)
                    waiting.unregister(link)
                    if code := link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                        why[place.number] = _sentence(place, os.strerror(code))
                    link.close()
            for key in waiting.get_map().values():
                why[key.data.number] = _sentence(key.data, f"no answer within {timeout:g} s")
        finally:
            for key in list(waiting.get_map().values()):
                with suppress(OSError):
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.close()
    return why


def _begun(address: str) -> socket.socket:
    """A connection that is being opened. ``address``: in a rendezvous's notation."""
    host, _, port = address.removeprefix("tcp:").rpartition(":")
    family, where = endpoint_of(host.strip("[]"), int(port), socket.AI_NUMERICHOST)
    link = socket.socket(family, socket.SOCK_STREAM)
    link.setblocking(False)
    code = link.connect_ex(where)
    if code not in (0, errno.EINPROGRESS):
        link.close()
        raise OSError(code, os.strerror(code))
    return link


def _sentence(place: Place, why: str) -> str:
    return (
        f"{socket.gethostname()} cannot open a connection to process {place.number} on {place.host} at "
        f"{place.address}: {why}"
    )
