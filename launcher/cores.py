"""How many processors this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cpus() -> int:
    """Hardware threads in this process's affinity mask."""
    return len(os.sched_getaffinity(0))


def usable_cores(topology: Path = Path("/sys/devices/system/cpu")) -> int:
    """Physical cores in this process's affinity mask: what mpirun counts as slots."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text())
        except OSError:  # no sysfs: every hardware thread counts
            cores.add(str(cpu))
    return len(cores)
