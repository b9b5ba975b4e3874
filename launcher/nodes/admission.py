"""Connects to a listener that admits only processes that know the job's secret: the peer of `doorkeeper.py`."""

from __future__ import annotations

import socket
from typing import Any

from .greeting import MAX_LINE, WITHIN, Other, Stranger

# Values in seconds, and in milliseconds.
_SILENCE = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 30_000,
}


class Refused(Exception):
    """The peer, which knows the secret, does not admit this process. The text says why."""


def be_admitted(host: str, port: int, key: bytes, facts: dict[str, Any]) -> socket.socket:
    """Connects and gets admitted. `facts`: what this process reports. Raises OSError, Stranger and Refused."""
    other = Other(key)
    link = socket.create_connection((host, port), WITHIN)
    try:
        link.sendall(other.hello())
        link.sendall(other.prove(_read_line(link), facts))
        if refusal := other.refusal(_read_line(link)):
            raise Refused(refusal)
    except (OSError, Stranger, Refused):
        link.close()
        raise
    link.settimeout(None)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return link


def notice_silence(link: socket.socket) -> None:
    """Sets TCP options with which a silently lost host is noticed after half a minute. Raises OSError."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENCE.items():
        link.setsockopt(socket.IPPROTO_TCP, option, value)


def _read_line(link: socket.socket) -> bytes:
    """Reads byte by byte, because what follows the handshake is for other readers. Raises Stranger, OSError."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = link.recv(1)
        if not piece and not line:
            raise ConnectionResetError("it has closed the connection")
        if not piece or len(line) > MAX_LINE:
            raise Stranger
        line += piece
    return bytes(line)
