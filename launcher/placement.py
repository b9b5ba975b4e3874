"""Places ranks on hosts, and makes the variables that identify a rank."""

from __future__ import annotations

from collections.abc import Sequence
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


def identity(shares: Sequence[HostShare], rank: int) -> dict[str, str]:
    """Variables with the rank's number in the job, on its host, and among ranks of equal number on other hosts."""
    index = next(i for i, share in enumerate(shares) if rank in share.ranks)
    local = rank - shares[index].first
    has_peer = [share.count > local for share in shares]
    return {
        "RUEDA_RANK": str(rank),
        "RUEDA_SIZE": str(sum(share.count for share in shares)),
        "RUEDA_LOCAL_RANK": str(local),
        "RUEDA_LOCAL_SIZE": str(shares[index].count),
        "RUEDA_CROSS_RANK": str(sum(has_peer[:index])),
        "RUEDA_CROSS_SIZE": str(sum(has_peer)),
        "RUEDA_BOOTSTRAP": "rendezvous",
    }
