"""Where the ranks of another world meet, which those of the present one form among themselves."""

from __future__ import annotations

import os
import secrets
import socket

from rueda import _native

__all__ = ["listen", "meeting_place"]


def meeting_place(across_hosts: bool) -> tuple[socket.socket | None, str]:
    """An address for ``open_world()`` and ``enter_world()``, to be served by the rank that calls this.

    Within a host it is a name of 128 random bits, which that rank binds when it enters. Across hosts it is a socket
    that listens already, so that nobody else can take the port.

    Raises ``OSError`` or :class:`rueda.InitializationError` where no interface of this host can be listened at.
    """
    if not across_hosts:
        return None, f"unix:@rueda-{secrets.token_hex(16)}"
    return listen(_native.options()["interface"])


def listen(interface: str = "") -> tuple[socket.socket, str]:
    """A socket that listens at a free port of an interface, and its address as a rendezvous has it.

    ``interface``: its name or an address of this host; by default ``RUEDA_INTERFACE``, else what its name resolves to.

    Raises ``OSError`` or :class:`rueda.InitializationError` where no interface of this host can be listened at.
    """
    host = _native.own_address(interface or os.environ.get("RUEDA_INTERFACE", ""))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family, backlog=socket.SOMAXCONN)
    port = listener.getsockname()[1]
    return listener, f"tcp:[{host}]:{port}" if family == socket.AF_INET6 else f"tcp:{host}:{port}"
