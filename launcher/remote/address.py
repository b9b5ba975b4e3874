"""The meeting address for ranks on several hosts: an address of rank 0's host that the other hosts can reach."""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rueda.endpoints import endpoint_of

from ..errors import LaunchError

_SIOCGIFADDR = 0x8915
# Any port will do: asking the kernel for the route to an address sends nothing.
_PORT = 9
# Scopes of addresses in /proc/net/if_inet6.
_GLOBAL, _LINK_LOCAL = "00", "20"
# Names looked up concurrently.
_AT_ONCE = 16


def bare(host: str) -> str:
    """A host's name, without the brackets of an IPv6 address."""
    return host[1:-1] if host.startswith("[") else host


def address_in(endpoint: Sequence[Any]) -> str:
    """The address in what sockets report, if it is link-local with the interface's name: `fe80::1%eth0`."""
    address = str(endpoint[0]).removeprefix("::ffff:")  # IPv4, at a socket for both
    if len(endpoint) < 4 or not endpoint[3]:
        return address
    try:
        name = socket.if_indextoname(endpoint[3])
    except OSError:  # it is gone
        name = str(endpoint[3])
    return f"{address.partition('%')[0]}%{name}"


def machine_identity() -> str:
    """What is equal for two processes only if they are on one machine, as the library sees it; "" if unknown.

    That is the kernel and the network namespace. The name tells virtual machines of one snapshot apart.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.stat("/proc/self/ns/net")
    except OSError:
        return ""
    return f"{socket.gethostname()}/{boot}/{space.st_dev}:{space.st_ino}"


def resolve(host: str) -> str | None:
    """The address of a host as seen from here; None if it is this host's loopback or cannot be resolved."""
    try:
        found = socket.getaddrinfo(bare(host), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError for an invalid name
        return None
    addresses = [address_in(entry[4]) for entry in found]
    return next((address for address in addresses if not is_loopback(address)), None)


async def resolve_all(hosts: Iterable[str]) -> dict[str, str | None]:
    """Calls resolve() for each in threads, so that a name server that does not answer blocks nothing else.

    Uses daemon threads, which do not keep the process from exiting.
    """
    loop = asyncio.get_running_loop()
    limit = asyncio.Semaphore(_AT_ONCE)

    async def look_up(host: str) -> str | None:
        answer: asyncio.Future[str | None] = loop.create_future()

        def deliver(found: str | None) -> None:
            if not answer.done():
                answer.set_result(found)

        def ask() -> None:
            found = resolve(host)
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(deliver, found)

        async with limit:
            try:
                threading.Thread(target=ask, daemon=True).start()
            except RuntimeError:  # too many processes
                return resolve(host)
            return await answer

    names = list(dict.fromkeys(hosts))
    return dict(zip(names, await asyncio.gather(*map(look_up, names)), strict=True))


def ssh_connection() -> Sequence[str]:
    """The two addresses of the ssh connection that started this process: the launcher's and this host's; or ""."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4 or "UNKNOWN" in words:  # from a daemon whose own streams are pipes
        return "", ""
    return words[0], words[2]


def towards(address: str) -> str | None:
    """This host's own address on the route to another address."""
    own = _source_towards(address)
    return None if own is None or is_loopback(own) else own


def interface_address(interface: str) -> str:
    """An address of this host, given an interface's name, an address, or a host name. Raises LaunchError."""
    if (Path("/sys/class/net") / interface).exists():
        found = _ipv4_of(interface) or _ipv6_of(interface)
        if found is None:
            raise LaunchError(f"interface '{interface}' has no address, or is down")
        return found
    try:
        for entry in socket.getaddrinfo(bare(interface), None, type=socket.SOCK_STREAM):
            address = address_in(entry[4])
            if is_own(address):
                return address
    except OSError:
        pass
    raise LaunchError(
        f"'{interface}' (--interface) is neither a network interface nor an address of that host"
    )


def is_own(address: str) -> bool:
    """Whether this host has the address, in which case the route to it starts there."""
    return bool(address) and _source_towards(address) == address


def listen(address: str) -> socket.socket:
    """A socket that listens on a free port of the address, or of all addresses if it is not this host's own."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(endpoint_of(address, 0, socket.AI_NUMERICHOST)[1])
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            listener.bind(("", 0))  # the host is reached through a translated address
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise LaunchError(f"cannot listen at {address}: {error.strerror}") from error
    return listener


def rendezvous_at(address: str, port: int) -> str:
    """The address in the form of RUEDA_RENDEZVOUS."""
    return f"tcp:[{address}]:{port}" if ":" in address else f"tcp:{address}:{port}"


def _source_towards(address: str) -> str | None:
    try:
        family, where = endpoint_of(address, _PORT, socket.AI_NUMERICHOST)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return address_in(probe.getsockname())
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    """Whether this is an address that means, on every host, the host itself."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:  # "", or what another host has called its address
        return False


def _ipv4_of(interface: str) -> str | None:
    request = array.array("B", struct.pack("40s", interface.encode()[:15]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        try:
            fcntl.ioctl(control, _SIOCGIFADDR, request, True)
        except OSError:
            return None
    return socket.inet_ntoa(request.tobytes()[20:24])


def _ipv6_of(interface: str) -> str | None:
    """A link-local address only if there is no other: other hosts can use it only through an interface of that name."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return None
    found: dict[str, str] = {}
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if name == interface:
            found.setdefault(scope, str(ipaddress.IPv6Address(int(digits, 16))))
    link_local = f"{found[_LINK_LOCAL]}%{interface}" if _LINK_LOCAL in found else None
    return found.get(_GLOBAL, link_local)
