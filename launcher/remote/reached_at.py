"""The address at which the hosts of a job reach one of them, as far as the launcher knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..hosts import Host
from . import address
from .connection import Connection

_LOOPBACK = "127.0.0.1"


def address_of(
    connection: Connection,
    connections: Sequence[Connection],
    hosts: Sequence[Host],
    named: Mapping[str, str | None],
) -> str:
    """The address of a host that has said hello, or "" if none is known.

    It is a loopback address only if all `connections` lead to one machine. `hosts`: all of the job. `named`: what their
    names resolve to, from address.resolve().
    """
    by_name = named.get(connection.name) or ""
    over_ssh = "" if connection.share.host.is_local else connection.facts.get("own_address", "")
    if not connection.share.host.is_local:
        if by_name:
            return by_name
        if over_ssh and not address.is_loopback(over_ssh):
            return over_ssh
    if _is_here(connection):
        others = (other for other in connections if not _is_here(other))
        seen = (_seen_by(other, named) for other in others)
        if own := next(filter(None, seen), "") or _towards(hosts, named):
            return own
    is_alone = all(_is_one(connection, other) for other in connections)
    return by_name or ((over_ssh or _LOOPBACK) if is_alone else "")


def _is_here(connection: Connection) -> bool:
    """Whether the host is the launcher's own, under whatever name."""
    machine = connection.facts.get("machine", "")
    return connection.share.host.is_local or machine == address.machine_identity() != ""


def _is_one(some: Connection, other: Connection) -> bool:
    """Whether two names are known to be those of one machine."""
    machine = some.facts.get("machine", "")
    return some is other or machine == other.facts.get("machine") != ""


def _seen_by(other: Connection, named: Mapping[str, str | None]) -> str:
    """The launcher's address on the route to another host."""
    found = named.get(other.name)
    own = (address.towards(found) if found else None) or other.facts.get("launcher_address", "")
    return "" if address.is_loopback(own) else own


def _towards(hosts: Sequence[Host], named: Mapping[str, str | None]) -> str:
    """The launcher's address on the route to a host that may join."""
    for host in hosts:
        found = None if host.is_local else named.get(host.name)
        if own := address.towards(found) if found else None:
            return own
    return ""
