"""Lets no process of a job outlive the launcher, not even one that is killed with SIGKILL."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time

from .errors import RAISE_PROCESS_LIMITS, LaunchError
from .interruptions import Repetitions, hold_relayed_signals, relayed_signals
from .processes import (
    adopt_orphans,
    become_killable,
    descendants,
    hide_command_line,
    kill_all,
    name_process,
    reap,
)
from .sink import say

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# What processes that got SIGKILL need to be gone.
_KILLED = 2.0


def guard(grace: float) -> int:
    """Splits the launcher in three: returns in the last process, which is to run the job.

    The guardian, which comes first, keeps the process number that the user knows. It passes signals
    on and ends with the job's exit code. They go through a pipe, whose end is returned, a byte with
    the number of each: so the supervisor, which runs the job, can tell them from those that were
    sent to both. When the guardian is killed, the pipe says so and the supervisor ends the job as if
    it had been asked to.

    The keeper stands between the two and does nothing but inherit what a killed supervisor has left,
    also where the guardian is killed with it, and end it: SIGTERM, and SIGKILL `grace` seconds
    later. When the keeper is killed, the supervisor gets SIGTERM, and the guardian inherits.
    """
    hold_relayed_signals()
    watched = {signal.SIGCHLD, *_PASSED_ON, *relayed_signals()}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        watched.remove(signal.SIGHUP)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*watched, *_PASSED_ON})
    adopt_orphans()
    told, tell = os.pipe()
    keeper = _fork()
    if keeper == 0:
        os.close(tell)
        _keep(grace, told)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return told
    os.close(told)
    os.set_blocking(tell, False)
    raise SystemExit(_watch(keeper, tell, watched, grace))


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        raise LaunchError(
            f"the launcher cannot start a process: {error.strerror}; {RAISE_PROCESS_LIMITS}"
        ) from error


def _keep(grace: float, told: int) -> None:
    """The keeper's whole life; returns in the supervisor."""
    os.setpgid(0, 0)  # a terminal's signals are for the guardian alone
    adopt_orphans()
    parent = os.getpid()
    supervisor = _fork()
    if supervisor == 0:
        become_killable(parent, signal.SIGTERM)
        name_process("rank supervisor")  # so that `killall rueda` ends only the guardian
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # writes to the terminal from its new group
        return
    os.close(told)
    name_process("rank keeper")
    hide_command_line("rank keeper")  # `pkill -f` by words of the command leaves it alone
    code = os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    if code < 0:
        _end_descendants(grace)
        _die_of(signal.Signals(-code))
    os._exit(code)


def _die_of(number: signal.Signals) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # whoever died of it first has left one
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _watch(keeper: int, tell: int, watched: set[signal.Signals], grace: float) -> int:
    repetitions = Repetitions()
    while True:
        info = signal.sigwaitinfo(watched)
        number = signal.Signals(info.si_signo)
        if number != signal.SIGCHLD:
            if repetitions.is_new(number, info.si_pid, time.monotonic()):
                # It may be ending, or stopped.
                with contextlib.suppress(BrokenPipeError, BlockingIOError):
                    os.write(tell, bytes([number]))
            continue
        ended, status = os.waitpid(keeper, os.WNOHANG)
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
