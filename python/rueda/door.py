"""Addresses at which ranks of the current world meet to form another one."""

from __future__ import annotations

import os
import secrets
import socket

from rueda import _native
from rueda.endpoints import endpoint_of

__all__ = ["listen", "meeting_place"]


def meeting_place(across_hosts: bool) -> tuple[socket.socket | None, str]:
    """An address for ``open_world()`` and ``enter_world()``, to be served by the rank that calls this.

    Within a host it is a name of 128 random bits, which that rank binds when it enters. Across hosts it is a socket
    that is already listening, so that no other process can take the port.

    Raises ``OSError`` or :class:`rueda.InitializationError` if this host has no interface to listen on.
    """
    if not across_hosts:
        return None, f"unix:@rueda-{secrets.token_hex(16)}"
    return listen(_native.options()["interface"])


def listen(interface: str = "") -> tuple[socket.socket, str]:
    """A socket that listens on a free port of an interface, and its address in a rendezvous's notation.

    ``interface``: its name or an address of this host; by default ``RUEDA_INTERFACE``, else what the host's name
    resolves to.

    Raises ``OSError`` or :class:`rueda.InitializationError` if this host has no interface to listen on.
    """
    host = _native.own_address(interface or os.environ.get("RUEDA_INTERFACE", ""))
    family, where = endpoint_of(host, 0, socket.AI_NUMERICHOST)
    listener = socket.create_server(where, family=family, backlog=socket.SOMAXCONN)
    port = listener.getsockname()[1]
    return listener, f"tcp:[{host}]:{port}" if family == socket.AF_INET6 else f"tcp:{host}:{port}"
