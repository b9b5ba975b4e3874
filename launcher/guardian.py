"""Ensures that no process of a job outlives the launcher, even if the launcher is killed with SIGKILL."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time

from .errors import RAISE_PROCESS_LIMITS, LaunchError
from .interruptions import RELAYED, Repetitions, hold_relayed_signals, relayed_signals
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
# What the supervisor handles. If the launcher's parent has blocked these, they are unblocked, or the supervisor would
# not notice the end of a rank. Nor are they blocked in the processes that it starts, so that SIGTERM ends a rank within
# the grace, and mpirun notices the ends of its own children; mpirun, too, unblocks signals for its ranks. Others that
# are blocked remain so in the ranks, as without a launcher.
_NOT_BLOCKED = {signal.SIGCHLD, *_PASSED_ON, *RELAYED}
# Seconds for processes to disappear after SIGKILL.
_KILLED = 2.0


def guard(grace: float) -> int:
    """Splits the launcher into three processes. Returns in the last one, the supervisor, which runs the job.

    The guardian is the first process and keeps the process ID that the user knows. It relays signals
    and exits with the job's exit code. It writes the number of each signal as a byte to a pipe, whose
    read end is returned. So the supervisor can tell relayed signals from those that were sent to both
    processes. When the guardian is killed, the pipe closes, and the supervisor ends the job as if it
    had been asked to.

    The keeper is between the two. It only adopts and ends the processes that a killed supervisor leaves
    behind, also if the guardian is killed with it: SIGTERM, then SIGKILL after `grace` seconds. When
    the keeper is killed, the supervisor gets SIGTERM, and the guardian adopts the processes.
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
        signal.pthread_sigmask(signal.SIG_SETMASK, before - _NOT_BLOCKED)
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
    """Runs the keeper. Returns only in the supervisor."""
    os.setpgid(0, 0)  # signals from a terminal go to the guardian alone
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
    hide_command_line("rank keeper")  # so that `pkill -f` with words of the command does not match
    code = os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1])
    if code < 0:
        _end_descendants(grace)
        _die_of(signal.Signals(-code))
    os._exit(code)


def _die_of(number: signal.Signals) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the job has left a core file already
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
                # The supervisor may be ending, or stopped.
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
        _stop_watching(watched)  # so that signals end this process if say() blocks
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
