"""Network namespaces of labs by name: made, found again after a crash, and removed with all in them.

Everything of a lab carries the lab's name as a prefix: the namespaces, their folders below /etc/netns, and
the lab's own folder. So what a killed process has left can be found and removed without knowing more.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from .tools import Unavailable, find, run, try_to

# Of every lab's name.
PREFIX = "rueda-lab-"
NETNS = Path("/run/netns")
ETC = Path("/etc/netns")
_FOLDERS = Path("/tmp")
# In the lab's folder: the process that is to remove the lab; 0 where a command will.
_OWNER = "owner"
_KILLED_WITHIN = 10.0


def check_available() -> None:
    """Raises Unavailable where no namespaces can be made."""
    if os.geteuid() != 0:
        raise Unavailable("needs root for network namespaces")
    for program in ("ip", "unshare", "hostname"):
        if find(program) is None:
            raise Unavailable(f"needs {program}, which is not installed")


def folder_of(lab: str) -> Path:
    """Where the lab keeps its files: the agent, keys, logs."""
    return _FOLDERS / lab


def make_folder(lab: str, owner: int) -> Path:
    """Makes the lab's folder. Raises Unavailable where the lab exists already."""
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
    """Those of one lab, or of all whose names begin with `lab`."""
    if not NETNS.is_dir():
        return []
    return sorted(entry.name for entry in NETNS.iterdir() if entry.name.startswith(lab))


def labs() -> list[str]:
    """All labs of this machine, also such as are there in part."""
    folders = [path.name for path in _FOLDERS.glob(f"{PREFIX}*")]
    spaces = [name.rpartition("-")[0] for name in namespaces_of(PREFIX)]
    return sorted({*folders, *spaces})


def remove(lab: str) -> None:
    """Ends the processes of a lab and removes all of it; also one of which only a part is left."""
    spaces = namespaces_of(lab + "-")
    _end_processes(spaces)
    for space in spaces:
        try_to(["ip", "netns", "delete", space])
    for etc in ETC.glob(f"{lab}-*") if ETC.is_dir() else ():
        shutil.rmtree(etc, ignore_errors=True)
    with suppress(OSError):
        ETC.rmdir()  # where nobody else has anything in it
    shutil.rmtree(folder_of(lab), ignore_errors=True)


def sweep() -> list[str]:
    """Removes the labs of processes that are gone; returns their names."""
    swept = []
    for lab in labs():
        try:
            owner = int((folder_of(lab) / _OWNER).read_text())
        except (OSError, ValueError):
            continue  # being made or removed
        if owner != 0 and not Path(f"/proc/{owner}").exists():
            remove(lab)
            swept.append(lab)
    return swept


def processes_of(space: str) -> list[int]:
    """The processes in a namespace."""
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
