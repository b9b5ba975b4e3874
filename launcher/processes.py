"""Linux's means against orphans: adoption of descendants, and death with the parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process, so that it can find them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def name_process(name: str) -> None:
    """What `ps` and `killall` call this process, up to 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def hide_command_line(text: str) -> None:
    """Puts `text` where `ps` and `pkill -f` find the words that this process was started with."""
    with contextlib.suppress(OSError), open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        if 0 < begin < end:  # else the kernel does not tell
            words = text.encode()[: end - begin - 1]
            ctypes.memmove(begin, words.ljust(end - begin, b"\0"), end - begin)


def become_killable(launcher: int, death_signal: signal.Signals) -> None:
    """In a new child: leads a process group, and gets `death_signal` when the launcher dies.

    The child has its own group so that a signal reaches whatever it has started as well.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != launcher:  # died before the call above
        os._exit(1)


def _parents() -> dict[int, int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
                # pid (name) state ppid ...; the name may contain spaces and parentheses.
                parents[int(entry)] = int(stat.read().rpartition(b")")[2].split()[1])
    return parents


def descendants(ancestor: int) -> set[int]:
    """Processes, zombies included, that descend from `ancestor`."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents().items():
        children.setdefault(parent, []).append(process)
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        for process in children.get(waiting.pop(), []):
            found.add(process)
            waiting.append(process)
    return found


def children(parent: int) -> set[int]:
    """Processes, zombies included, whose parent is `parent`: cheap, for looking often."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children") as c:
                found.update(map(int, c.read().split()))
    return found


def members_of(group: int, ancestor: int) -> set[int]:
    """Processes of a process group that descend from `ancestor`, as those do that it has adopted."""
    members: set[int] = set()
    for process in descendants(ancestor):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process) == group:
                members.add(process)
    return members


def environment_of(process: int) -> dict[bytes, bytes]:
    """The variables that the process's program was started with; none where they may not be read."""
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            settings = file.read().split(b"\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (setting.partition(b"=") for setting in settings)}


def waited_for_processor(process: int) -> float:
    """The seconds that its main thread was ready and had no processor; 0 where the kernel does not tell."""
    try:
        with open(f"/proc/{process}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def is_alive(process: int) -> bool:
    """Whether the process exists and has not ended yet."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def kill_all(processes: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to each that still exists."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def reap(processes: Iterable[int]) -> None:
    """Takes leave of adopted processes that have ended."""
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
