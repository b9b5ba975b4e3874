"""Lets no process of a job outlive the launcher, not even one that is killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import time

from .processes import adopt_orphans, become_killable, descendants, kill_all, name_process, reap
from .sink import say

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# What processes that got SIGKILL need to be gone.
_KILLED = 2.0


def guard(grace: float) -> None:
    """Splits the launcher in two: returns in a child process, which is to run the job.

    The parent keeps the process number that the user knows. It passes signals on and ends with the
    child's exit code. When it is killed, the child gets SIGTERM and ends the job as if it had been
    asked to. When the child is killed, the parent inherits what the job has left, and ends it:
    SIGTERM, and SIGKILL `grace` seconds later.
    """
    watched = {signal.SIGCHLD, *_PASSED_ON}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        watched.remove(signal.SIGHUP)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    adopt_orphans()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        become_killable(parent, signal.SIGTERM)
        name_process("rank supervisor")  # so that `killall rueda` ends only the parent
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # writes to the terminal from its new group
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    raise SystemExit(_watch(child, watched, grace))


def _watch(child: int, watched: set[signal.Signals], grace: float) -> int:
    while True:
        number = signal.Signals(signal.sigwaitinfo(watched).si_signo)
        if number != signal.SIGCHLD:
            kill_all([child], number)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended == 0:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        _end_descendants(grace)
        say(f"the launcher was killed by {signal.Signals(-code).name}; all ranks are gone")
        return 128 - code


def _end_descendants(grace: float) -> None:
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILLED)):
        deadline = time.monotonic() + seconds
        kill_all(descendants(os.getpid()), number)
        while left := descendants(os.getpid()):
            if time.monotonic() > deadline:
                break
            reap(left)
            time.sleep(0.02)
