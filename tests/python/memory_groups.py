"""Memory-limiting control groups, if this machine lets a test create one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")


def _own_group() -> tuple[Path, str]:
    """Returns the folder of this process's memory control group and the name of its limit file."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return MOUNT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
    return MOUNT, "memory.max"


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """Creates a group limited to ``limit`` bytes; to join, write a process ID to ``cgroup.procs``.

    Raises ``OSError`` if the machine has no such groups or does not let this process create one.
    """
    own, name = _own_group()
    if not own.is_dir():  # in a container that sees its own group as the root
        own = MOUNT / "memory"
    group = own / f"rueda-test-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        (group / name).write_text(str(limit))
        yield group
    finally:
        group.rmdir()
