"""What sockets take for an address."""

from __future__ import annotations

import socket
from typing import Any

__all__ = ["endpoint_of"]


def endpoint_of(address: str, port: int, flags: int = 0) -> tuple[socket.AddressFamily, Any]:
    """The family of an address and what sockets take for it; ``flags`` as in ``socket.getaddrinfo``.

    A pair of address and port will not do for a link-local address: Python then drops the interface.

    Raises ``OSError``.
    """
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=flags)
    return found[0][0], found[0][4]
