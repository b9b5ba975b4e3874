"""Prints what rank 0 knows about the links of a world: ``mpirun -H a,b python -m rueda.links``.

``rueda check -H a,b`` runs it without MPI, or with ``--mpi`` under mpirun.
"""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from typing import Any

SIZES = [1 << exponent for exponent in range(3, 31)]


def measure() -> dict[str, Any]:
    """The world's hosts, links and algorithms, as ``rueda check --help`` documents them. Within a world."""
    import rueda

    hosts = Counter(rueda.allgather_object(_host_name()))
    choices = [(size, rueda.choose_algorithm(size)) for size in SIZES]
    return {
        "schema": 1,
        "ranks": rueda.size(),
        "hosts": dict(hosts),
        "links": [link._asdict() for link in rueda.host_links()],
        "allreduce": [
            {"bytes": size, "algorithm": choice.algorithm, "predicted_us": choice.predicted_us}
            for size, choice in choices
        ],
    }


def _host_name() -> str:
    import socket

    return socket.gethostname()


def _size(bytes: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if bytes >= 1 << power:
            return f"{bytes >> power} {unit}"
    return f"{bytes} bytes"


def _prediction(microseconds: float) -> str:
    if microseconds == 0:
        return "no time predicted: nothing was measured"
    digits = ".2g" if microseconds < 10 else ".0f"
    return f"{microseconds:{digits}} µs predicted"


def describe(world: dict[str, Any]) -> str:
    """The result of :func:`measure` as lines of text."""
    hosts = ", ".join(f"{name} ({ranks})" for name, ranks in world["hosts"].items())
    count = len(world["hosts"])
    lines = [f"ranks: {world['ranks']} on {count} host{'' if count == 1 else 's'}: {hosts}"]
    for index, link in enumerate(world["links"]):
        words = ["used" if index == 0 else "not used"]
        if link["obstacle"]:
            words = [f"cannot be used: {link['obstacle']}"]
        elif link["latency_us"] > 0:
            words.append(f"{link['latency_us']:.1f} µs")
            rate = link["gbit_per_second"]
            words.append(f"{rate:.2f} Gbit/s" if rate > 0 else "rate too high to measure")
        lines.append(f"link {link['transport']}: {', '.join(words)}")
    before = None
    for row in world["allreduce"]:
        if row["algorithm"] == before:
            continue
        before = row["algorithm"]
        lines.append(
            f"allreduce from {_size(row['bytes'])}: {before}, {_prediction(row['predicted_us'])}"
        )
    if world["links"] and all(link["transport"] != "mpi" for link in world["links"]):
        lines.append("link mpi: not tried; 'rueda check -H HOSTS --mpi' has mpirun start the ranks")
    return "\n".join(lines)


def main() -> None:
    """Prints the result once; with ``--json`` as one object."""
    import rueda

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for characters that the user's encoding lacks
    rueda.init()
    world = measure()
    if rueda.rank() == 0:
        print(json.dumps(world) if "--json" in sys.argv[1:] else describe(world), flush=True)
    rueda.shutdown()


if __name__ == "__main__":
    main()
