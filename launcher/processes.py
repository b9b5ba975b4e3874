"""Linux features against orphans: adopting descendants, and a death signal when the parent dies."""

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
    """From now on, descendants whose parent ends become children of this process, so that it can find them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def name_process(name: str) -> None:
    """Sets this process's name in `ps` and `killall`, up to 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def hide_command_line(text: str) -> None:
    """Replaces this process's command line in `ps` and `pkill -f` by `text`."""
    with contextlib.suppress(OSError), open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        if 0 < begin < end:  # else the kernel does not report it
            words = text.encode()[: end - begin - 1]
            ctypes.memmove(begin, words.ljust(end - begin, b"\0"), end - begin)


def become_killable(launcher: int, death_signal: signal.Signals) -> None:
    """Call in a new child. It becomes the leader of a process group, and gets `death_signal` when the launcher dies.

    The child has its own group so that a signal also reaches all processes that it has started.
    """
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != launcher:  # the launcher died before the call above
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
    """Descendants of `ancestor`, including zombies."""
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
    """Children of `parent`, including zombies. Cheap, so that it can be called often."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{thread}/children") as c:
                found.update(map(int, c.read().split()))
    return found


def members_of(group: int, ancestor: int) -> set[int]:
    """Processes of a process group that are descendants of `ancestor`, including adopted ones.

    Cheap if the group is empty, as when a process without children has ended: other processes then need the processor
    to go on without it, and a host may have thousands of processes to look at.
    """
    members: set[int] = set()
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return members
    except PermissionError:
        pass  # somebody else's processes
    for process in descendants(ancestor):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process) == group:
                members.add(process)
    return members


def environment_of(process: int) -> dict[bytes, bytes]:
    """The variables with which the process's program was started; empty if they may not be read."""
    try:
        with open(f"/proc/{process}/environ", "rb") as file:
            settings = file.read().split(b"\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (setting.partition(b"=") for setting in settings)}


def waited_for_processor(process: int) -> float:
    """Seconds for which its main thread was runnable but had no processor; 0 if the kernel does not report it."""
    try:
        with open(f"/proc/{process}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def is_stopped(process: int) -> bool:
    """Whether a process is stopped by a signal such as SIGSTOP."""
    return _state_of(process) == b"T"


def is_alive(process: int) -> bool:
    """Whether the process exists and has not ended yet."""
    return _state_of(process) not in (b"", b"Z", b"X")


def _state_of(process: int) -> bytes:
    """The kernel's letter for a process's state; empty if there is no such process."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0]
    except OSError:
        return b""


def kill_all(processes: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to each that still exists."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def reap(processes: Iterable[int]) -> None:
    """Reaps adopted processes that have ended."""
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
