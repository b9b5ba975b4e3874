"""Asks the user's script periodically which hosts exist."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from ..errors import MAX_QUOTED, LaunchError
from ..hosts import Host, merge_hosts, parse_host_line, total_slots
from ..output import ended_by
from ..remote.address import resolve
from ..sink import say as say_at_once
from .growth import Limits

_PAUSE = 1.0
# Seconds between checks for an answer.
_LOOK = 0.1
_SCRIPT_TIMEOUT = 30.0
# Seconds to wait for a script to end once it is killed.
_GIVEN_UP = 1.0
# Bytes of a file that show whether it is a text.
_BEGINNING = 300
# More than any list of hosts needs. A script that prints endlessly must not fill the memory.
_MAX_OUTPUT = 1 << 20
# Reasons why the system did not start the script that may be gone at the next try.
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
# Exit codes with which a shell says that it cannot run a command.
_NOT_RUN = (126, 127)
_SHELL = "/bin/sh"


@dataclass(frozen=True)
class Elastic:
    """The command line's settings for an elastic job."""

    limits: Limits
    script: str | None
    slots_per_host: int | None
    start_timeout: float  # seconds within which the script must name enough slots


class _Kind(Enum):
    """What is wrong with a run of the script."""

    NOT_STARTED = auto()
    LATE = auto()
    FAILED = auto()
    ENDLESS = auto()
    NOT_A_HOST = auto()
    NO_HOST = auto()
    OUT_OF_REACH = auto()


class _Trouble(LaunchError):
    """A run of the script has no valid answer, or one that can only be used in part."""

    def __init__(self, kind: _Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Discovery:
    """Runs `--host-discovery-script`, which prints a line `host:slots` or `host` per host to standard output.

    The script is a file, or any other command for the shell, such as a file with arguments.

    If a script fails, hangs, prints something else or no host at all, its previous answer stays valid: a cluster whose
    list is empty for a moment has not lost its hosts. Each of these is reported once until there is a valid answer,
    because the script's words may differ from run to run. `localhost:0` means no slots.

    Use as an asynchronous context manager. At the end, the script is ended if it runs, which is not reported.

    `default_slots`: for hosts without a number. `here_only`: the job cannot use other hosts, so these are reported.
    `say`: prints reports. `at_start`: nothing runs yet, so a script that cannot be run is an error of the user's, in
    `problem`.
    """

    def __init__(
        self,
        script: str,
        default_slots: int | None,
        here_only: bool = False,
        say: Callable[[str], None] | None = None,
        at_start: bool = False,
    ) -> None:
        self._say = say or say_at_once
        self._script = script
        self._default_slots = default_slots
        self._here_only = here_only
        self.hosts: tuple[Host, ...] | None = None  # from the last valid answer
        self.problem = ""  # why the latest run had no valid answer
        self.never_starts = False  # before the job: the script cannot be run, so it will not start
        self._may_never_start = at_start
        self._reported: set[_Kind] = set()  # since the last valid answer
        self._process: asyncio.subprocess.Process | None = None  # the latest
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Discovery:
        """Starts asking."""
        self._task = asyncio.get_running_loop().create_task(self._ask_again_and_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops."""
        assert self._task is not None
        # Before Python 3.12, wait_for() loses a cancellation that comes while the awaited task ends.
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_GIVEN_UP)
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._process is not None:  # the cancellation may have come while it was being ended
            await _await_end(self._process)

    async def _ask_again_and_again(self) -> None:
        while True:
            try:
                self._take(await self._run())
                self._reported.clear()
                self.problem = ""
            except _Trouble as trouble:
                self.problem = str(trouble)
                if not self.never_starts:
                    self._report(trouble)
            await asyncio.sleep(_PAUSE)

    async def _run(self) -> str:
        is_first = self._may_never_start
        try:
            process = await self._start()
        except OSError as error:
            self.never_starts = is_first and error.errno not in _PASSING
            raise _Trouble(
                _Kind.NOT_STARTED, f"cannot run '{self._script}': {error.strerror}"
            ) from error
        self._process = process
        self._may_never_start = False
        try:
            output, complaints = await asyncio.wait_for(self._read(process), _SCRIPT_TIMEOUT)
        except asyncio.TimeoutError:
            raise _Trouble(_Kind.LATE, f"{self.awaited()} within {_SCRIPT_TIMEOUT:g} s") from None
        finally:
            await _end(process)
        if process.returncode != 0:
            told = (output + complaints).decode(errors="replace").strip()[-MAX_QUOTED:]
            if process.returncode in _NOT_RUN and _is_of_nothing(self._script):
                self.never_starts = is_first
                raise _Trouble(_Kind.NOT_STARTED, f"cannot run '{self._script}': {told}")
            raise _Trouble(
                _Kind.FAILED, f"'{self._script}' exited with code {process.returncode}: {told}"
            )
        return output.decode(errors="replace")

    async def _start(self) -> asyncio.subprocess.Process:
        """Starts the script, in a process group of its own; raises OSError."""
        file = _file_of(self._script)
        # The system's words are better than the shell's for the name of a file that does not exist.
        is_name = not self._script.strip() or shlex.quote(self._script) == self._script
        if file is None and not is_name:
            return await _start(_SHELL, "-c", self._script)
        try:
            return await _start(self._script)
        except OSError as error:
            if error.errno != errno.ENOEXEC or file is None or not _is_text(file):
                raise
        return await _start(_SHELL, file)

    def awaited(self) -> str:
        """What the latest run has not done yet."""
        if self._process is None or self._process.returncode is None:
            return f"'{self._script}' has not ended"
        return (
            f"'{self._script}' has ended, but something that it started still holds its output (as a daemon does "
            "without '>/dev/null 2>&1') and has not ended"
        )

    async def _read(self, process: asyncio.subprocess.Process) -> list[bytes]:
        """Reads its standard output and standard error to the end."""
        assert process.stdout is not None
        assert process.stderr is not None
        streams = (process.stdout, process.stderr)
        parts = [asyncio.ensure_future(self._read_all(stream)) for stream in streams]
        try:
            output = await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
        await process.wait()
        return output

    async def _read_all(self, stream: asyncio.StreamReader) -> bytes:
        output = b""
        while piece := await stream.read(_MAX_OUTPUT):
            output += piece
            if len(output) > _MAX_OUTPUT:
                raise _Trouble(
                    _Kind.ENDLESS, f"'{self._script}' has printed more than {_MAX_OUTPUT} bytes"
                )
        return output

    def _take(self, text: str) -> None:
        hosts = self._parse(text)
        if not hosts:
            raise _Trouble(_Kind.NO_HOST, f"'{self._script}' printed no host")
        others = [host.name for host in hosts if not host.is_local]
        if not self._here_only or len(others) < len(hosts):
            self.hosts = hosts
            self._reported &= {_Kind.OUT_OF_REACH}  # whatever else it was is over
        if others and self._here_only:
            raise _Trouble(
                _Kind.OUT_OF_REACH,
                f"'{self._script}' names host '{others[0]}', but ranks of other hosts cannot join, because the job "
                "began with only this host, under a local name: let its first answer use a name known in the network",
            )

    def _parse(self, text: str) -> tuple[Host, ...]:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        try:
            return merge_hosts(
                parse_host_line(self._script, line, self._default_slots) for line in lines
            )
        except LaunchError as error:
            raise _Trouble(_Kind.NOT_A_HOST, str(error)) from error

    def _report(self, trouble: _Trouble) -> None:
        if trouble.kind not in self._reported:
            self._reported.add(trouble.kind)
            self._say(f"--host-discovery-script: {trouble}")


async def _start(*command: str) -> asyncio.subprocess.Process:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except (
        asyncio.CancelledError
    ):  # passed on, it would end the process, but not what that has started
        with contextlib.suppress(OSError):
            await _end(await starting)
        raise


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends it, and everything that it has started in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(asyncio.TimeoutError):  # its output so far, if it was killed
        await asyncio.wait_for(process.communicate(), _LOOK)
    await _await_end(process)


async def _await_end(process: asyncio.subprocess.Process) -> None:
    """Returns once asyncio has reaped it. If the supervisor did so first, asyncio would complain.

    Not by `wait()`, which in some versions also waits for others that hold its output.
    """
    deadline = time.monotonic() + _GIVEN_UP
    while process.returncode is None and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK / 10)


def _file_of(script: str) -> str | None:
    """The file that a script without arguments names, by its path or as a program; `None` if there is none."""
    if os.sep in script:
        return script if os.path.exists(script) else None
    return shutil.which(script)


def _is_text(file: str) -> bool:
    """Whether a shell may run it: what the system cannot run may be a program for another processor."""
    with open(file, "rb") as content:
        return b"\0" not in content.read(_BEGINNING)


def _is_of_nothing(script: str) -> bool:
    """Whether there is no program of the name with which a command for the shell begins."""
    if _file_of(script) is not None:
        return False
    first = script.split()[:1]
    return all(shlex.quote(each) == each and shutil.which(each) is None for each in first)


def hosts_at_start(elastic: Elastic, ranks: int) -> tuple[Host, ...]:
    """The script's first answer with slots for all ranks. Called before anything else starts.

    Raises LaunchError if there are not enough slots within `start_timeout`, at once if the script cannot be run at all,
    and SystemExit after a signal.
    """
    came: list[signal.Signals] = []

    async def ask() -> tuple[Host, ...]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: signal.Signals) -> None:
            came.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        assert elastic.script is not None
        async with Discovery(elastic.script, elastic.slots_per_host, at_start=True) as discovery:
            return await _enough(discovery, ranks, elastic.start_timeout)

    try:
        return asyncio.run(ask())
    except asyncio.CancelledError:
        code, words = ended_by(came[0])
        say_at_once(words)
        raise SystemExit(code) from None


async def _enough(discovery: Discovery, ranks: int, timeout: float) -> tuple[Host, ...]:
    deadline = time.monotonic() + timeout
    while total_slots(discovery.hosts or ()) < ranks:
        if discovery.never_starts:
            raise LaunchError(f"--host-discovery-script: {discovery.problem}")
        if time.monotonic() > deadline:
            why = f": {discovery.problem}" if discovery.problem else ""
            if discovery.hosts is None and not why:
                why = f": {discovery.awaited()} yet"
            raise LaunchError(
                f"--host-discovery-script: only {total_slots(discovery.hosts or ())} of {ranks} slots were available "
                f"within {timeout:g} s (--elastic-timeout){why}"
            )
        await asyncio.sleep(_LOOK)
    assert discovery.hosts is not None
    return discovery.hosts


def is_here_only(hosts: tuple[Host, ...]) -> bool:
    """Whether other hosts can never join: the only host is this one, under a name that is meaningless elsewhere."""
    return all(host.is_local and resolve(host.name) is None for host in hosts)
