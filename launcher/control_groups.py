"""The control group of this process, such as a container's or a batch job's, and what the kernel says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
# Limits from here on are version 1's way to say that there is none.
_UNLIMITED = 1 << 60
# The files of versions 2 and 1 that count processes killed for lack of memory, and that limit it.
_COUNTERS = ("memory.events", "memory.oom_control")
_LIMITS = ("memory.max", "memory.limit_in_bytes")


def folders_of(controller: str, groups: Path = _GROUPS, mount: Path = _MOUNT) -> Iterator[Path]:
    """The folders in which a controller's files for this process's group may lie, each followed by its ancestors.

    Yields those of version 2 as well as of version 1, whose files have other names.
    """
    try:
        lines = groups.read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:  # number:controllers:/path
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _upwards(mount, path)
        elif controller in controllers.split(","):
            for name in dict.fromkeys((controller, controllers)):
                yield from _upwards(mount / name, path)


class OomKills:
    """Tells whether the kernel may have killed a process of this process's group because memory ran out."""

    def __init__(self, groups: Path = _GROUPS, mount: Path = _MOUNT) -> None:
        """What the kernel has killed so far does not count."""
        self._folders = list(folders_of("memory", groups, mount))
        self._explained = self._count()

    def explain(self) -> str:
        """Why a process was killed by SIGKILL, in words; "" if that had another reason, or it is not known.

        Call once for each such process: the kernel counts how many it kills.
        """
        if self._count() <= self._explained:
            return ""
        self._explained += 1
        limits = (_number_in(folder / name) for folder in self._folders for name in _LIMITS)
        least = min((limit for limit in limits if limit is not None), default=_UNLIMITED)
        if least >= _UNLIMITED:
            return "the kernel ran out of memory"
        return f"the kernel ran out of memory in this control group (limit {_size(least)})"

    def _count(self) -> int:
        """How many the kernel has killed in the group; 0 if it does not tell."""
        files = (folder / name for folder in self._folders for name in _COUNTERS)
        return next((count for count in map(_kills_in, files) if count is not None), 0)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The folders of a group and its ancestors. A container's own group may be mounted as if it were the root."""
    parts = [part for part in path.split("/") if part]
    for count in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:count])


def _kills_in(file: Path) -> int | None:
    try:
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def _number_in(file: Path) -> int | None:
    """The number in the file; None if there is none, as where it says "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _size(count: int) -> str:
    """A number of bytes for people to read."""
    return f"{count / 2**30:.4g} GiB" if count >= 2**30 else f"{count / 2**20:.4g} MiB"
