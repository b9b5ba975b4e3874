"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path

from .control_groups import folders_of


def usable_cpus() -> int:
    """Hardware threads in this process's affinity mask."""
    return len(_usable())


def usable_cores(topology: Path = Path("/sys/devices/system/cpu")) -> int:
    """Physical cores in this process's affinity mask, which mpirun counts as slots."""
    cores = set()
    for cpu in _usable():
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            cores.add(siblings.read_text())
        except OSError:  # no sysfs: every hardware thread counts
            cores.add(str(cpu))
    return len(cores)


def cpu_quota(
    groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """The CPU limit of this process's control group (of a container, say) in CPUs, such as 2.5. None: no limit."""
    quotas = []
    for folder in folders_of("cpu", groups, mount):
        quotas.append(_read_quota(folder / "cpu.max"))
        quotas.append(_read_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"))
    return min((quota for quota in quotas if quota is not None), default=None)


def cores_within_quota() -> tuple[int, float | None]:
    """How many cores this process may keep busy, and the quota if it allows fewer than there are."""
    cores, quota = usable_cores(), cpu_quota()
    if quota is None or math.ceil(quota) >= cores:
        return cores, None
    return math.ceil(quota), quota


def _usable() -> Collection[int]:
    """The hardware threads in this process's affinity mask; all of the machine's if the system does not tell."""
    try:
        return os.sched_getaffinity(0)
    except OSError:  # a filter of system calls forbids it
        return range(os.cpu_count() or 1)


def _read_quota(*files: Path) -> float | None:
    """Quota divided by period, read from one file or two. None if there is no limit."""
    try:
        quota, period = map(float, " ".join(file.read_text() for file in files).split())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
