"""Control groups that limit memory, where this machine lets a test make one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")


def _own_group() -> tuple[Path, str]:
    """The folder of this process's group that limits memory, and the name of its limit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return MOUNT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
    return MOUNT, "memory.max"


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A group of so many bytes, empty; a process enters it by writing its number to ``cgroup.procs`` there.

    Raises ``OSError`` where this machine has none, or does not let this process make one.
    """
    own, name = _own_group()
    if not own.is_dir():  # of a container that sees its own as the first
        own = MOUNT / "memory"
    group = own / f"rueda-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        (group / name).write_text(str(limit))
        yield group
    finally:
        group.rmdir()
