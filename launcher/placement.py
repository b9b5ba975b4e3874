"""Places ranks on hosts, and makes the variables that identify a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .hosts import Host, total_slots


@dataclass(frozen=True)
class HostShare:
    """The ranks of one host, which are consecutive."""

    host: Host
    first: int
    count: int

    @property
    def ranks(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.count)


def place(ranks: int, hosts: Sequence[Host]) -> list[HostShare]:
    """Fills the hosts in order. If ranks outnumber slots, divides the ranks evenly over the hosts."""
    if not hosts:
        return [HostShare(Host("localhost", ranks), 0, ranks)]
    if ranks > total_slots(hosts):
        each, more = divmod(ranks, len(hosts))
        counts = [each + (index < more) for index in range(len(hosts))]
    else:
        counts = []
        for host in hosts:
            counts.append(min(host.slots, ranks - sum(counts)))
    shares = []
    first = 0
    for host, count in zip(hosts, counts, strict=True):
        if count > 0:
            shares.append(HostShare(host, first, count))
            first += count
    return shares


def by_machine(
    shares: Sequence[HostShare], machines: Mapping[str, str] | None = None
) -> list[list[HostShare]]:
    """The shares of each machine, in order of its first rank.

    `machines`: what identifies the machine of a host, by the host's name. A machine may be listed under several
    names. A host without an entry is a machine of its own.
    """
    found: dict[str, list[HostShare]] = {}
    for share in shares:
        machine = (machines or {}).get(share.host.name) or share.host.name
        found.setdefault(machine, []).append(share)
    return list(found.values())


def identity(
    shares: Sequence[HostShare], rank: int, machines: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Variables with the rank's number in the job, on its host, and among ranks of equal number on other hosts.

    `machines`: as for by_machine(). The library, too, counts the ranks of a machine as one host's.
    """
    hosts = by_machine(shares, machines)
    index = next(i for i, host in enumerate(hosts) if any(rank in share.ranks for share in host))
    local = sum(min(max(0, rank - share.first), share.count) for share in hosts[index])
    counts = [sum(share.count for share in host) for host in hosts]
    has_peer = [count > local for count in counts]
    return {
        "RUEDA_RANK": str(rank),
        "RUEDA_SIZE": str(sum(counts)),
        "RUEDA_LOCAL_RANK": str(local),
        "RUEDA_LOCAL_SIZE": str(counts[index]),
        "RUEDA_CROSS_RANK": str(sum(has_peer[:index])),
        "RUEDA_CROSS_SIZE": str(sum(has_peer)),
        "RUEDA_BOOTSTRAP": "rendezvous",
    }
