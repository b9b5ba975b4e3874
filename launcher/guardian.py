"""Lets no process of a job outlive the launcher, not even one that is killed with SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from .processes import adopt_orphans, become_killable, descendants, kill_all, name_process, reap
from .sink import say

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# What processes that got SIGKILL need to be gone.
_KILLED = 2.0


def guard(grace: float) -> int:
    """Splits the launcher in two: returns in a child process, which is to run the job.

    The parent keeps the process number that the user knows. It passes signals on and ends with the
    child's exit code. They go through a pipe, whose end is returned, a byte with the number of
    each: so the child can tell them from those that were sent to both. When the parent is killed,
    the child gets SIGTERM and ends the job as if it had been asked to. When the child is killed,
    the parent inherits what the job has left, and ends it: SIGTERM, and SIGKILL `grace` seconds
    later.
    """
    watched = {signal.SIGCHLD, *_PASSED_ON}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        watched.remove(signal.SIGHUP)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    adopt_orphans()
    parent = os.getpid()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        become_killable(parent, signal.SIGTERM)
        name_process("rank supervisor")  # so that `killall rueda` ends only the parent
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # writes to the terminal from its new group
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return told
    os.close(told)
    os.set_blocking(tell, False)
    raise SystemExit(_watch(child, tell, watched, grace))


def _watch(child: int, tell: int, watched: set[signal.Signals], grace: float) -> int:
    while True:
        number = signal.Signals(signal.sigwaitinfo(watched).si_signo)
        if number != signal.SIGCHLD:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):  # it is ending, or stopped
                os.write(tell, bytes([number]))
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended == 0:
            continue
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        _end_descendants(grace)
        _stop_watching(watched)  # perhaps nobody reads what is said
        say(f"the launcher was killed by {signal.Signals(-code).name}; all ranks are gone")
        return 128 - code


def _stop_watching(watched: set[signal.Signals]) -> None:
    for number in watched:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)


def _end_descendants(grace: float) -> None:
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILLED)):
        deadline = time.monotonic() + seconds
        kill_all(descendants(os.getpid()), number)
        while left := descendants(os.getpid()):
            if time.monotonic() > deadline:
                break
            reap(left)
            time.sleep(0.02)
