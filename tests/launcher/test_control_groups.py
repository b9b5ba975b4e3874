"""Killed for lack of memory: the control group's counters say it, the launcher's report repeats it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rueda.launcher.control_groups import OomKills
from rueda_command import LAUNCHER, launcher_environment

from .conftest import Rueda

MOUNT = Path("/sys/fs/cgroup")
LIMIT = 320 << 20


class Tree:
    """A made-up /proc/self/cgroup and /sys/fs/cgroup."""

    def __init__(self, folder: Path, groups: str) -> None:
        self.groups, self.mount = folder / "groups", folder / "mount"
        self.groups.write_text(groups + "\n")

    def write(self, name: str, text: str) -> None:
        file = self.mount / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


# Version 2; as seen in a container; version 1; with a memory controller that another one shares.
WAYS = {
    "v2": ("0::/pod/c", "pod/c/memory.events", "pod/memory.max"),
    "v2-container": ("0::/of/the/host", "memory.events", "memory.max"),
    "v1": (
        "4:memory:/docker/x\n0::/",
        "memory/docker/x/memory.oom_control",
        "memory/docker/x/memory.limit_in_bytes",
    ),
    "v1-shared": (
        "4:memory,hugetlb:/x",
        "memory,hugetlb/x/memory.oom_control",
        "memory,hugetlb/memory.limit_in_bytes",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_kill_of_the_kernel_explains_one_process(tmp_path: Path, way: str) -> None:
    groups, events, limit = WAYS[way]
    tree = Tree(tmp_path, groups)
    tree.write(limit, str(300 << 20))
    tree.write(events, "oom_kill_disable 0\nunder_oom 0\noom 7\noom_kill 5")
    kills = OomKills(tree.groups, tree.mount)
    assert kills.explain() == ""
    tree.write(events, "oom 8\noom_kill 7\noom_group_kill 0")
    words = "the kernel ran out of memory in this control group (limit 300 MiB)"
    assert [kills.explain() for _ in range(3)] == [words, words, ""]


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096), ""])
def test_without_a_limit_it_is_the_machine_that_ran_out(tmp_path: Path, limit: str) -> None:
    tree = Tree(tmp_path, "0::/a")
    tree.write("a/memory.max", limit)
    tree.write("a/memory.events", "oom_kill 0")
    kills = OomKills(tree.groups, tree.mount)
    tree.write("a/memory.events", "oom_kill 1")
    assert kills.explain() == "the kernel ran out of memory"


def test_nothing_is_told_where_nothing_can_be_read(tmp_path: Path) -> None:
    assert OomKills(tmp_path / "none", tmp_path).explain() == ""
    tree = Tree(tmp_path, "4:memory:/x\nnonsense\n0::/")
    assert OomKills(tree.groups, tree.mount).explain() == ""
    tree.write("memory/x/memory.oom_control", "oom_kill many")
    assert OomKills(tree.groups, tree.mount).explain() == ""


def _new_group() -> Path:
    """A control group with a limit of memory; OSError if none can be made here."""
    parent = MOUNT / "memory" if (MOUNT / "memory").is_dir() else MOUNT
    group = parent / f"rueda-test-{os.getpid()}"
    group.mkdir()
    try:
        name = "memory.max" if (group / "cgroup.controllers").exists() else "memory.limit_in_bytes"
        with open(group / name, "r+") as file:  # creates none
            file.write(str(LIMIT))
        with contextlib.suppress(OSError), open(group / "memory.swap.max", "r+") as file:
            file.write("0")
    except OSError:
        group.rmdir()
        raise
    return group


@pytest.fixture
def group() -> Iterator[Path]:
    try:
        made = _new_group()
    except OSError as error:
        pytest.skip(f"no control group with a limit of memory can be made here: {error}")
    yield made
    deadline = time.monotonic() + 30
    while True:  # the launcher's guardian may outlive it for a moment
        try:
            return made.rmdir()
        except OSError:
            assert time.monotonic() < deadline, (made / "cgroup.procs").read_text()
            time.sleep(0.01)


@pytest.mark.parametrize("way", ["this host", "hosts"])
def test_who_was_killed_for_lack_of_memory_is_told(
    group: Path, tmp_path: Path, script: Callable[[str], str], way: str
) -> None:
    name = script(f"""
        if rank == 1:
            hoard = []
            for _ in range({2 * LIMIT >> 20}):
                hoard.append(b"x" * (1 << 20))
        time.sleep(600 if rank == 0 else 0)
    """)
    ranks = {
        "this host": ["--no-mpi", "-np", "2"],
        "hosts": ["--no-mpi", "-H", "localhost:1,far:1", "--ssh", str(_agent(tmp_path))],
    }[way]
    ran = subprocess.run(
        ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        + [*LAUNCHER, "run", *ranks, "--grace", "0.5", "python3", name],
        env=launcher_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 137, ran.stderr
    assert re.search(
        r"rank 1 on \S+ failed first: killed by SIGKILL \(Killed\): the kernel ran out of memory in "
        r"this control group \(limit 320 MiB\)$",
        ran.stderr.rstrip(),
    ), ran.stderr


def _agent(folder: Path) -> Path:
    """A program that runs the command here, as ssh would elsewhere."""
    agent = folder / "agent"
    agent.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nshift\nexec sh -c "$*"\n'
    )
    agent.chmod(0o755)
    return agent


def test_who_was_killed_otherwise_is_not_explained(
    rueda: Rueda, script: Callable[[str], str]
) -> None:
    name = script("""
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
    """)
    ran = rueda("run", "--no-mpi", "-np", "2", "--grace", "0.5", "python3", name)
    assert re.search(r"rank 1 on \S+ failed first: killed by SIGKILL \(Killed\)$", ran.err.rstrip())
