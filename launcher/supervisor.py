"""Runs child processes: hands on their output, passes on signals, and leaves no process behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .output import Stream
from .processes import adopt_orphans, become_killable, descendants, kill_all, reap

# What descendants get to end by themselves once the ranks are gone.
_NATURAL_END = 1.0
# How long ended processes' pipes may stay open before they are given up.
_DRAIN = 2.0

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(eq=False)
class Child:
    """One process and what to do with what it writes and with its end."""

    process: subprocess.Popen[bytes]
    on_output: Callable[[Stream, bytes], None]
    on_exit: Callable[[int], None]
    open_pipes: int = 2
    exited: bool = False


class Supervisor:
    """Starts children, each in a process group of its own, and stays until all are gone.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on; whoever is left after `grace` seconds is
    killed. SIGPIPE, which a write to a pipe that nobody reads brings, ends the children as SIGTERM
    does. Use as an asynchronous context manager around spawn() and wait(); give_way() in between
    lets signals be obeyed.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._children: list[Child] = []
        self._all_spawned = False
        self._all_exited = asyncio.Event()
        self._all_drained = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        self.interrupted_by: signal.Signals | None = None
        self.ending = False  # whoever exits from now on was told to

    async def __aenter__(self) -> Supervisor:
        """Takes over the signals."""
        adopt_orphans()
        for number in self._handled():
            self._loop.add_signal_handler(number, self._pass_on, number)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends what still runs, also after an error in between."""
        self._signal_all(signal.SIGKILL)
        for timer in self._timers:
            timer.cancel()
        for number in (*self._handled(), signal.SIGCHLD):
            self._loop.remove_signal_handler(number)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python has it

    @staticmethod
    def _handled() -> list[signal.Signals]:
        with_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        passed_on = [n for n in _PASSED_ON if not (with_nohup and n == signal.SIGHUP)]
        return [*passed_on, signal.SIGPIPE]

    def spawn(
        self,
        argv: Sequence[str],
        environment: dict[str, str],
        on_output: Callable[[Stream, bytes], None],
        on_exit: Callable[[int], None],
        stdin: int | None = subprocess.DEVNULL,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> int:
        """Starts a process. `on_exit` gets its status: negative for a signal. Raises OSError.

        `death_signal` is what it gets should the launcher itself be killed.
        """
        launcher = os.getpid()
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            preexec_fn=lambda: become_killable(launcher, death_signal),
        )
        child = Child(process, on_output, on_exit)
        self._children.append(child)
        assert process.stdout is not None
        assert process.stderr is not None
        self._loop.add_reader(process.stdout, self._read, child, "stdout", process.stdout.fileno())
        self._loop.add_reader(process.stderr, self._read, child, "stderr", process.stderr.fileno())
        return process.pid

    def every(self, seconds: float, act: Callable[[], None]) -> None:
        """Calls `act` again and again until the children have exited."""

        def again() -> None:
            if not self._all_exited.is_set():
                act()
                self._loop.call_later(seconds, again)

        self._loop.call_later(seconds, again)

    def end_after(self, seconds: float) -> None:
        """Ends all children in `seconds`: SIGTERM, and SIGKILL `grace` seconds later."""
        self._timers.append(self._loop.call_later(seconds, self._end, signal.SIGTERM))
        self._timers.append(self._loop.call_later(seconds + self._grace, self._end, signal.SIGKILL))

    async def give_way(self) -> None:
        """Handles signals and output that have come meanwhile."""
        await asyncio.sleep(0)

    async def wait(self) -> None:
        """Returns when every child, and every process that they started, is gone."""
        self._all_spawned = True
        self._reap()
        await self._all_exited.wait()
        await self._end_descendants()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_drained.wait(), _DRAIN)

    def _end(self, number: signal.Signals) -> None:
        self.ending = True
        self._signal_all(number)

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children:
            if not child.exited:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, number)

    def _pass_on(self, number: signal.Signals) -> None:
        if number == signal.SIGPIPE and self.ending:
            return
        if self.interrupted_by is not None:  # asked for twice: no more patience
            self._end(signal.SIGKILL)
            return
        self.interrupted_by = number
        self.ending = True
        self._signal_all(signal.SIGTERM if number == signal.SIGPIPE else number)
        self.end_after(self._grace)

    def _reap(self) -> None:
        for child in self._children:
            if child.exited or child.process.poll() is None:
                continue
            child.exited = True
            child.on_exit(child.process.returncode)
        if self._all_spawned and all(child.exited for child in self._children):
            self._all_exited.set()

    def _read(self, child: Child, stream: Stream, descriptor: int) -> None:
        chunk = os.read(descriptor, 1 << 16)
        if chunk:
            child.on_output(stream, chunk)
            return
        self._loop.remove_reader(descriptor)
        child.open_pipes -= 1
        if all(child.open_pipes == 0 for child in self._children):
            self._all_drained.set()

    async def _end_descendants(self) -> None:
        for number, patience in (
            (None, _NATURAL_END),
            (signal.SIGTERM, self._grace),
            (signal.SIGKILL, _DRAIN),
        ):
            if number is not None:
                kill_all(descendants(os.getpid()), number)
            deadline = self._loop.time() + patience
            while left := descendants(os.getpid()):
                if self._loop.time() > deadline:
                    break
                reap(left)
                await asyncio.sleep(0.02)
            if not left:
                return
