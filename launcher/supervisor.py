"""Runs child processes: passes on their output and signals to them, and leaves no process behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .control_groups import OomKills
from .errors import LaunchError
from .interruptions import RELAYED, Interruptions, Way, hold_relayed_signals, relayed_signals
from .orphans import AdoptedZombies
from .output import Stream
from .processes import (
    adopt_orphans,
    become_killable,
    descendants,
    is_stopped,
    kill_all,
    members_of,
    reap,
    waited_for_processor,
)
from .sink import is_unread, say
from .writer import Writer

# Seconds for descendants to end on their own once the ranks are gone.
_NATURAL_END = 1.0
# Seconds for which the pipes of ended processes may stay open before they are given up.
_DRAIN = 2.0
# The limit, as a multiple, by which waiting for a processor extends end_after_moment(); seconds between its looks.
_MOST_WAITING = 10
_LOOK = 0.02
# Seconds for which the launcher's output may stay unread, once a signal has come, before it is given up.
_UNREAD = 1.0

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


# Seconds for a rank to end by itself once the others have gone on without it.
_CUT_OFF = 30.0


@dataclass(eq=False)
class Child:
    """One process, with handlers for its output and its end."""

    process: subprocess.Popen[bytes]
    on_output: Callable[[Stream, bytes], None]
    on_exit: Callable[[int], None]
    on_signal: Callable[[signal.Signals], None] | None
    on_end: Callable[[], None] | None
    open_pipes: int = 2
    exited: bool = False
    ended: bool = False
    was_killed: bool = False  # by the launcher
    cause: str = ""  # why somebody else has killed it, if known; set before `on_exit` is called

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its group, or lets `on_signal` pass it on."""
        if self.exited:
            return
        if self.on_signal is not None:
            self.on_signal(number)
        else:
            self.kill(number)

    def relay(self, number: signal.Signals) -> None:
        """Sends a signal to the process alone (its helpers may not expect it), or lets `on_signal` pass it on."""
        if self.exited:
            return
        if self.on_signal is not None:
            self.on_signal(number)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def end(self, grace: float) -> None:
        """Ends it: SIGTERM, then SIGKILL after `grace` seconds."""
        self.send_signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(grace, self.send_signal, signal.SIGKILL)

    def end_silent(self, grace: float, say: Callable[[str], None]) -> None:
        """Like end(), for a rank that did not answer the others.

        Unless it is stopped, it gets time to notice that itself: it may only be cut off.
        """

        def end() -> None:
            if not self.exited:
                number = self.process.pid
                say(
                    f"process {number} did not answer, and the others have gone on without it: it is ended"
                )
                self.end(grace)

        pause = 0.0 if is_stopped(self.process.pid) else _CUT_OFF
        asyncio.get_running_loop().call_later(pause, end)

    def end_rest(self, grace: float) -> None:
        """Like end(), for processes that it has left in its group. Call once it has exited."""

        def end(number: signal.Signals) -> None:
            kill_all(members_of(self.process.pid, os.getpid()), number)

        end(signal.SIGTERM)
        asyncio.get_running_loop().call_later(grace, end, signal.SIGKILL)

    def kill(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its group."""
        if not self.exited:
            self.was_killed = self.was_killed or number == signal.SIGKILL
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


class Supervisor:
    """Starts children, each in its own process group, and waits until all are gone.

    SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on, and children that are left after `grace` seconds
    are killed. SIGUSR1 and SIGUSR2 are passed on to the processes alone and end nothing.

    If nobody reads this process's output any more, the children are ended as by SIGTERM. Use as an
    asynchronous context manager around spawn() and wait(), then written() and say(). Call give_way()
    in between to handle signals.

    `beside`: asynchronous context managers that are to exit once all children have. If they have started processes,
    they must end these: wait() takes those that are left for ones that a child has left behind.

    `writer` writes what the children's `on_output` produces. Children are not read while the writer is
    full. `relay` is a pipe through which the guardian relays signals; see guardian.py.
    """

    def __init__(self, grace: float, writer: Writer, relay: int) -> None:
        self._grace = grace
        self._writer = writer
        self._relay = relay
        self._interruptions = Interruptions()
        self._relayed = {number: Interruptions() for number in RELAYED}
        self._zombies = AdoptedZombies(
            lambda: {child.process.pid for child in self._children if not child.exited}
        )
        self._children: list[Child] = []
        self._unread: list[tuple[Child, Stream, int]] = []  # not read until the writer has room
        self._all_spawned = False
        self._all_exited = asyncio.Event()
        self._is_woken = False  # by a thread that has made progress
        self._changed = asyncio.Event()  # something that _until() may be waiting for
        self._loop = asyncio.get_running_loop()
        self.beside = contextlib.AsyncExitStack()
        self._timers: list[asyncio.TimerHandle] = []
        self.oom_kills = OomKills()  # tells why children were killed
        self.interrupted_by: signal.Signals | None = None
        self.is_abandoned = (
            False  # interrupted since the process that the user has started was killed
        )
        self.ending = False  # children that exit from now on were told to

    async def __aenter__(self) -> Supervisor:
        """Installs the signal handlers."""
        adopt_orphans()
        for number in self._handled():
            self._loop.add_signal_handler(number, self._heed, number)
        for number in relayed_signals():
            self._loop.add_signal_handler(number, self._heed, number)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)
        self._loop.add_reader(self._relay, self._heed_guardian)
        return self

    async def __aexit__(self, error: object, *_: object) -> None:
        """Kills what is still running, also after an error."""
        self._signal_all(signal.SIGKILL)
        await self.beside.aclose()
        if error is not None:
            with contextlib.suppress(LaunchError):
                self._writer.start(self._notice_progress)
            self._writer.write_here()
            await self.written()
        for timer in self._timers:
            timer.cancel()
        for number in (*self._handled(), *relayed_signals(), signal.SIGCHLD):
            self._loop.remove_signal_handler(number)
        hold_relayed_signals()
        self._loop.remove_reader(self._relay)

    @staticmethod
    def _handled() -> list[signal.Signals]:
        with_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        return [n for n in _PASSED_ON if not (with_nohup and n == signal.SIGHUP)]

    def spawn(
        self,
        argv: Sequence[str],
        environment: dict[str, str],
        on_output: Callable[[Stream, bytes], None],
        on_exit: Callable[[int], None],
        stdin: int | None = subprocess.DEVNULL,
        death_signal: signal.Signals = signal.SIGKILL,
        pass_fds: Sequence[int] = (),
        on_signal: Callable[[signal.Signals], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> Child:
        """Starts a process. `on_exit` gets its status, negative for a signal. Raises OSError.

        `death_signal`: sent to it if the launcher itself is killed. `on_signal`: called instead of sending
        it a signal, for processes that get signals by other means. `on_end`: called once the process has
        exited and all of its output has been read.
        """
        launcher = os.getpid()
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=pass_fds,
            preexec_fn=lambda: become_killable(launcher, death_signal),
        )
        child = Child(process, on_output, on_exit, on_signal, on_end)
        self._children.append(child)
        assert process.stdout is not None
        assert process.stderr is not None
        self._loop.add_reader(process.stdout, self._read, child, "stdout", process.stdout.fileno())
        self._loop.add_reader(process.stderr, self._read, child, "stderr", process.stderr.fileno())
        return child

    def find(self, process_id: int) -> Child | None:
        """The child with this process ID, unless it has exited."""
        found = (child for child in self._children if child.process.pid == process_id)
        return next((child for child in found if not child.exited), None)

    def every(self, seconds: float, act: Callable[[], None]) -> None:
        """Calls `act` periodically until the children have exited."""

        def again() -> None:
            if not self._all_exited.is_set():
                act()
                self._loop.call_later(seconds, again)

        self._loop.call_later(seconds, again)

    def end_after(self, seconds: float) -> None:
        """Ends all children in `seconds`: SIGTERM, then SIGKILL after `grace` more seconds."""
        self._timers.append(self._loop.call_later(seconds, self.end, signal.SIGTERM))
        self._timers.append(self._loop.call_later(seconds + self._grace, self.end, signal.SIGKILL))

    def end_after_moment(self, seconds: float) -> None:
        """Like end_after(), but time that children spend waiting for a processor does not count.

        This extends the time by at most `_MOST_WAITING` times `seconds`.
        """
        begun = self._loop.time()
        before = {child: waited_for_processor(child.process.pid) for child in self._children}

        def look() -> None:
            waited = [
                waited_for_processor(child.process.pid) - already
                for child, already in before.items()
                if not child.exited
            ]
            more = min(max(waited, default=0.0), _MOST_WAITING * seconds)
            left = begun + seconds + more - self._loop.time()
            if left > 0:
                self._timers.append(self._loop.call_later(max(left, _LOOK), look))
            else:
                self.end_after(0)

        look()

    def end(self, number: signal.Signals) -> None:
        """Sends all children a signal that should end them."""
        self.ending = True
        for child in self._children:
            child.send_signal(number)

    def relay(self, number: signal.Signals) -> None:
        """Passes on a signal that does not end the job."""
        for child in self._children:
            child.relay(number)

    def interrupt(self, number: signal.Signals) -> None:
        """Acts as if the launcher had received the signal."""
        self._pass_on(number, "direct", "relayed")

    async def give_way(self) -> None:
        """Handles signals and output that have arrived meanwhile."""
        await asyncio.sleep(0)

    async def wait(self) -> None:
        """Returns when all children, and all processes that they started, are gone."""
        self._all_spawned = True
        self._writer.start(self._notice_progress)
        self._reap()
        await self._all_exited.wait()
        await self.beside.aclose()
        await self._end_descendants()
        await self._until(self._is_drained, self._writer)

    def start_writer(self, writer: Writer) -> None:
        """Starts another writer, whose progress is noticed as well."""
        writer.start(self._notice_progress)

    async def written(self) -> None:
        """Returns when the writer is done, or when a signal has come and nobody reads the output."""
        await self._until(lambda: self._writer.is_done, self._writer)

    async def say(self, text: str) -> None:
        """Prints a line. Waits for a reader no longer than written() does."""
        writer = Writer()  # the other writer may still be blocked on standard output
        writer.put(0, lambda: say(text))
        writer.start(self._notice_progress)
        await self._until(lambda: writer.is_done, writer)

    def until_ending(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """A `say` that drops lines once the children are being ended, as connections may then break anywhere."""
        return lambda text: None if self.ending else say(text)

    async def _until(self, is_reached: Callable[[], bool], writer: Writer) -> None:
        """Waits without a limit only while `writer` has work and no signal has come."""
        while not is_reached():
            timeout: float | None = _DRAIN
            if not writer.is_done:
                timeout = None if self.interrupted_by is None else _UNREAD
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except asyncio.TimeoutError:
                return

    def _is_drained(self) -> bool:
        return all(child.open_pipes == 0 for child in self._children)

    def _notice_progress(self) -> None:
        """Called from threads.

        Wakes the loop once for many writes: asyncio loses signals if its wake-up socket is full.
        """
        if self._is_woken:
            return
        self._is_woken = True
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        self._is_woken = False  # first, so that no progress after this look goes unnoticed
        self._changed.set()
        self._read_on()
        # Detected by the write error, not by SIGPIPE, which a closed connection also raises.
        if is_unread() and not self.ending:
            self.interrupt(signal.SIGPIPE)

    def _read_on(self) -> None:
        """Resumes reading from children that no longer have to wait."""
        unread, self._unread = self._unread, []
        for child, stream, descriptor in unread:
            if self._must_wait(child):
                self._unread.append((child, stream, descriptor))
            else:
                self._loop.add_reader(descriptor, self._read, child, stream, descriptor)

    def _must_wait(self, child: Child) -> bool:
        """Whether reading from the child is paused because the writer is full.

        After a signal, a child that passes signals on is always read, because it reports the effect.
        """
        is_obeying = self.interrupted_by is not None and child.on_signal is not None
        return self._writer.is_full and not is_obeying

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children:
            child.send_signal(number)

    def _heed(self, number: signal.Signals) -> None:
        self._pass_on(number, "direct")

    def _heed_guardian(self) -> None:
        numbers = os.read(self._relay, 64)
        for number in numbers:
            self._pass_on(signal.Signals(number), "relayed")
        if not numbers:  # the guardian has been killed
            self._loop.remove_reader(self._relay)
            self.is_abandoned = self.interrupted_by is None
            self._pass_on(signal.SIGTERM, "relayed")

    def _pass_on(self, number: signal.Signals, *ways: Way) -> None:
        if number in self._relayed:
            if self._relayed[number].is_new(*ways):
                self.relay(number)
            return
        if not self._interruptions.is_new(*ways):
            return
        self._changed.set()
        if self.interrupted_by is not None:  # the second request: kill at once
            self.end(signal.SIGKILL)
            return
        self.interrupted_by = number
        self.ending = True
        self._read_on()
        self._signal_all(signal.SIGTERM if number == signal.SIGPIPE else number)
        self.end_after(self._grace)

    def _reap(self) -> None:
        for child in self._children:
            if child.exited or child.process.poll() is None:
                continue
            child.exited = True
            if child.process.returncode == -signal.SIGKILL and not child.was_killed:
                child.cause = self.oom_kills.explain()
            child.on_exit(child.process.returncode)
            if child.open_pipes == 0:
                self._finish(child)
            else:  # other processes may hold the pipes open
                self._loop.call_later(_DRAIN, self._finish, child)
        if self._all_spawned and all(child.exited for child in self._children):
            self._all_exited.set()
        self._zombies.look()

    def _read(self, child: Child, stream: Stream, descriptor: int) -> None:
        if self._must_wait(child):
            self._loop.remove_reader(descriptor)
            self._unread.append((child, stream, descriptor))
            return
        chunk = os.read(descriptor, 1 << 16)
        if chunk:
            child.on_output(stream, chunk)
            return
        self._loop.remove_reader(descriptor)
        child.open_pipes -= 1
        if child.exited and child.open_pipes == 0:
            self._finish(child)
        self._changed.set()

    @staticmethod
    def _finish(child: Child) -> None:
        if child.on_end is not None and not child.ended:
            child.ended = True
            child.on_end()

    async def _end_descendants(self) -> None:
        for number, timeout in (
            (None, _NATURAL_END),
            (signal.SIGTERM, self._grace),
            (signal.SIGKILL, _DRAIN),
        ):
            if number is not None:
                kill_all(descendants(os.getpid()), number)
            deadline = self._loop.time() + timeout
            while left := descendants(os.getpid()):
                if self._loop.time() > deadline:
                    break
                reap(left)
                await asyncio.sleep(0.02)
            if not left:
                return
