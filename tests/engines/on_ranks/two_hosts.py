"""Work for an engine's ranks, two on each of two hosts, and checks of its results."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import rueda

_MIB = 1 << 20
_REDUCED = 16 * _MIB


def looks_around() -> dict[str, Any]:
    """Returns this rank's place, and the traffic of reductions in its host and over all ranks."""
    ranks = [*range(rueda.cross_rank() * 2, rueda.cross_rank() * 2 + 2)]
    both = [rueda.add_process_set([0, 1]), rueda.add_process_set([2, 3])]
    own = both[rueda.cross_rank()]
    return {
        "rank": rueda.rank(),
        "host": socket.gethostname(),
        "local": (rueda.local_rank(), rueda.local_size()),
        "cross": (rueda.cross_rank(), rueda.cross_size()),
        "sum": float(rueda.allreduce(np.array([10.0 ** rueda.rank()]), "sum", rueda.Sum)[0]),
        "links": [link.transport for link in rueda.host_links()],
        "within": _moved_by("within", len(ranks), own),
        "all": _moved_by("all", 4, None),
    }


def _moved_by(name: str, size: int, process_set: Any) -> tuple[float, float]:
    """Returns the MiB that this host sends in an allreduce: over loopback, to the other host."""
    rueda.barrier()
    before = _sent()
    rueda.barrier()
    options = {} if process_set is None else {"process_set": process_set}
    given = np.full(_REDUCED // 8, 1.0)
    assert (rueda.allreduce(given, name, rueda.Sum, **options) == size).all()
    rueda.barrier()
    after = _sent()
    rueda.barrier()
    return tuple((after[each] - before[each]) / _MIB for each in ("lo", "eth1"))


def _sent() -> dict[str, int]:
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    fields = [line.replace(":", " ").split() for line in lines]
    return {field[0]: int(field[9]) for field in fields}


def require_two_hosts(told: list[dict[str, Any]]) -> None:
    """``told``: the results of :func:`looks_around`, by rank."""
    assert [each["rank"] for each in told] == [0, 1, 2, 3]
    hosts = [each["host"] for each in told]
    assert hosts in (["h0", "h0", "h1", "h1"], ["h1", "h1", "h0", "h0"]), hosts
    assert [each["local"] for each in told] == [(0, 2), (1, 2)] * 2
    assert [each["cross"] for each in told] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    for each in told:
        assert each["sum"] == 1111
        assert each["links"] == ["tcp"]
        # Shared memory within a host; between hosts at least the reduced bytes. Engines send some
        # messages of their own.
        # messages of their own.
        assert max(each["within"]) < 2, each
        lo, eth1 = each["all"]
        assert lo < 2, each
        assert eth1 > 15, each


def fails_on_the_second_host() -> float:
    if rueda.rank() == 3:
        raise ValueError(f"a bad row on {socket.gethostname()}")
    return float(rueda.allreduce(np.ones(1), "gradient")[0])


def dies_on_the_second_host() -> float:
    rueda.barrier()
    if rueda.rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(rueda.allreduce(np.ones(1), "gradient")[0])
