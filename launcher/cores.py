"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def usable_cpus() -> int:
    """Hardware threads in this process's affinity mask."""
    return len(os.sched_getaffinity(0))


def usable_cores(topology: Path = Path("/sys/devices/system/cpu")) -> int:
    """Physical cores in this process's affinity mask, which mpirun counts as slots."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
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
    try:
        lines = groups.read_text().splitlines()
    except (OSError, ValueError):
        return None
    quotas = []
    for line in lines:  # number:controllers:/path
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            quotas += [_read_quota(folder / "cpu.max") for folder in _upwards(mount, path)]
        elif "cpu" in controllers.split(","):
            for name in ("cpu", "cpu,cpuacct"):
                for folder in _upwards(mount / name, path):
                    quotas.append(
                        _read_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
                    )
    return min((quota for quota in quotas if quota is not None), default=None)


def cores_within_quota() -> tuple[int, float | None]:
    """How many cores this process may keep busy, and the quota if it allows fewer than there are."""
    cores, quota = usable_cores(), cpu_quota()
    if quota is None or math.ceil(quota) >= cores:
        return cores, None
    return math.ceil(quota), quota


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The folders of a group and its ancestors. A container's own group may be mounted as if it were the root."""
    parts = [part for part in path.split("/") if part]
    for count in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:count])


def _read_quota(*files: Path) -> float | None:
    """Quota divided by period, read from one file or two. None if there is no limit."""
    try:
        quota, period = map(float, " ".join(file.read_text() for file in files).split())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
