"""A lab's network namespaces by name: made, found after a crash, and removed with their contents.

Everything of a lab has the lab's name as a prefix: the namespaces, their folders in /etc/netns, and
the lab's own folder. So the leftovers of a killed process can be found and removed by name alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from .tools import Unavailable, find, run, try_to

# Prefix of every lab's name.
PREFIX = "rueda-lab-"
NETNS = Path("/run/netns")
ETC = Path("/etc/netns")
_FOLDERS = Path("/tmp")
# File in the lab's folder with the process that removes the lab; 0 if a command does.
_OWNER = "owner"
_KILLED_WITHIN = 10.0


def check_available() -> None:
    """Raises Unavailable if no namespaces can be made."""
    if os.geteuid() != 0:
        raise Unavailable("needs root for network namespaces")
    for program in ("ip", "unshare", "hostname"):
        if find(program) is None:
            raise Unavailable(f"needs {program}, which is not installed")


def folder_of(lab: str) -> Path:
    """Returns the folder of the lab's files: the agent, keys, logs."""
    return _FOLDERS / lab


def make_folder(lab: str, owner: int) -> Path:
    """Makes the lab's folder. Raises Unavailable if the lab exists already."""
    folder = folder_of(lab)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise Unavailable(f"{lab} is up already; take it down first") from None
    (folder / _OWNER).write_text(str(owner))
    return folder


def add(namespace: str) -> None:
    """Makes a network namespace with its loopback up."""
    run("ip", "netns", "add", namespace)
    run("ip", "-n", namespace, "link", "set", "lo", "up")


def namespaces_of(lab: str) -> list[str]:
    """Returns the namespaces whose names begin with `lab`: those of one lab, or of all labs."""
    if not NETNS.is_dir():
        return []
    return sorted(entry.name for entry in NETNS.iterdir() if entry.name.startswith(lab))


def labs() -> list[str]:
    """Returns all labs of this machine, including partial ones."""
    folders = [path.name for path in _FOLDERS.glob(f"{PREFIX}*")]
    spaces = [name.rpartition("-")[0] for name in namespaces_of(PREFIX)]
    return sorted({*folders, *spaces})


def remove(lab: str) -> None:
    """Kills the processes of a lab and removes all of it, even if only a part exists."""
    spaces = namespaces_of(lab + "-")
    _end_processes(spaces)
    for space in spaces:
        try_to(["ip", "netns", "delete", space])
    for etc in ETC.glob(f"{lab}-*") if ETC.is_dir() else ():
        shutil.rmtree(etc, ignore_errors=True)
    with suppress(OSError):
        ETC.rmdir()  # if nobody else has anything in it
    shutil.rmtree(folder_of(lab), ignore_errors=True)


def sweep() -> list[str]:
    """Removes the labs whose owner process is gone; returns their names."""
    swept = []
    for lab in labs():
        try:
            owner = int((folder_of(lab) / _OWNER).read_text())
        except (OSError, ValueError):
            continue  # the lab is being made or removed
        if owner != 0 and not Path(f"/proc/{owner}").exists():
            remove(lab)
            swept.append(lab)
    return swept


def processes_of(space: str) -> list[int]:
    """Returns the processes in a namespace."""
    with suppress(Unavailable):
        return [int(word) for word in run("ip", "netns", "pids", space).split()]
    return []


def _end_processes(spaces: list[str]) -> None:
    deadline = time.monotonic() + _KILLED_WITHIN
    while left := [process for space in spaces for process in processes_of(space)]:
        if time.monotonic() > deadline:
            raise Unavailable(f"processes {left} of the lab do not end")
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
