"""This host's limits on processes and open files, checked before anything starts."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from .errors import LaunchError

# MPI and the library count ranks with 32 bits.
_MAX_RANKS = 2**31 - 1
# The launcher's descriptors per rank: two pipes, one more while it starts, and a file.
_PER_RANK_STARTED = 3
_OF_THE_LAUNCHER = 32
# A rank's descriptors per rank on its host: connections and shared memory (5.3 were counted); plus its own.
_PER_RANK_IN_WORLD = 6
_OF_A_RANK = 256


def max_processes() -> tuple[int, str]:
    """How many processes this user may have on this host, and which limit says so."""
    limits = []
    for name in ("pid_max", "threads-max"):
        try:
            limits.append((int(Path(f"/proc/sys/kernel/{name}").read_text()), f"kernel.{name}"))
        except (OSError, ValueError):
            continue
    allowed = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if allowed != resource.RLIM_INFINITY and os.geteuid() != 0:
        limits.append((allowed, "ulimit -u"))
    return min(limits, default=(_MAX_RANKS, "MPI"))


def check_number(ranks: int, ranks_here: int) -> None:
    """Raises LaunchError for more ranks than can be numbered, or than this host can run processes for."""
    if ranks > _MAX_RANKS:
        raise LaunchError(f"-np {ranks}: a job can have at most {_MAX_RANKS} ranks")
    most, source = max_processes()
    if ranks_here > most:
        raise LaunchError(
            f"-np {ranks}: this host can have at most {most} processes ({source}); start fewer ranks"
        )


def provide_descriptors(ranks_here: int, started_here: bool) -> None:
    """Raises the soft limit on open files, which ranks inherit, to what `ranks_here` ranks need.

    `started_here`: whether this process itself starts them. Raises LaunchError if the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = (_PER_RANK_STARTED * ranks_here if started_here else 0) + _OF_THE_LAUNCHER
    if hard != resource.RLIM_INFINITY and own > hard:
        raise LaunchError(
            f"starting {ranks_here} ranks on this host takes {own} open files, and the limit is "
            f"{hard}; raise it (ulimit -Hn {own}, as root) or start fewer ranks"
        )
    needed = max(own, _PER_RANK_IN_WORLD * ranks_here + _OF_A_RANK)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
