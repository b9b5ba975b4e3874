"""On which network of their hosts the ranks of an engine are reached."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from ipaddress import ip_address

__all__ = ["options_at"]

_CHOSEN = ("RUEDA_INTERFACE", "HOROVOD_GLOO_IFACE")


def options_at(host: str) -> dict[str, str]:
    """Options for :func:`rueda.init` by which a rank is reached where the engine reaches its host, a name or address.

    Without them ranks listen at what the host calls itself, or at its first interface, which may be on a network that
    the hosts do not share, such as one of containers. There are none where the user has chosen an interface by a
    variable, for the loopback, and for an address that this host does not have itself, as behind a translator.

    Example::

        >>> options_at("127.0.0.1")
        {}
    """
    if any(os.environ.get(name) for name in _CHOSEN):
        return {}
    with suppress(OSError):
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in found:
            address = str(where[0])
            if ip_address(address.partition("%")[0]).is_loopback:
                continue
            with suppress(OSError), socket.socket(family, kind, protocol) as own:
                own.bind(where)
                return {"interface": address}
    return {}
