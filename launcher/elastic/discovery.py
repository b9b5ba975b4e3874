"""Asks the user's script again and again which hosts there are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from ..errors import LaunchError
from ..hosts import Host, parse_host_line
from ..sink import say

_PAUSE = 1.0
_PATIENCE = 30.0
_SHOWN = 300


class Discovery:
    """Runs `--host-discovery-script`, which prints a line `host:slots` or `host` per host.

    A script that fails, hangs or prints something else is reported once, and what it has said before holds. Use as
    an asynchronous context manager. `default_slots`: of a host without a number.
    """

    def __init__(self, script: str, default_slots: int | None) -> None:
        self._script = script
        self._default_slots = default_slots
        self._hosts: tuple[Host, ...] | None = None
        self._reported = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def slots(self) -> int | None:
        """On this host, by the script's last good answer."""
        if self._hosts is None:
            return None
        return sum(host.slots for host in self._hosts if host.is_local)

    async def __aenter__(self) -> Discovery:
        """Begins to ask."""
        self._task = asyncio.get_running_loop().create_task(self._ask_again_and_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _ask_again_and_again(self) -> None:
        while True:
            try:
                self._take(await self._run())
                self._reported = ""
            except LaunchError as error:
                self._report(str(error))
            await asyncio.sleep(_PAUSE)

    async def _run(self) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                self._script,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"cannot run '{self._script}': {error.strerror}") from error
        try:
            output, _ = await asyncio.wait_for(process.communicate(), _PATIENCE)
        except asyncio.TimeoutError:
            raise LaunchError(f"'{self._script}' has not ended within {_PATIENCE:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        text = output.decode(errors="replace")
        if process.returncode != 0:
            raise LaunchError(
                f"'{self._script}' has ended with {process.returncode}: {text.strip()[-_SHOWN:]}"
            )
        return text

    def _take(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        hosts = tuple(parse_host_line(self._script, line, self._default_slots) for line in lines)
        others = [host.name for host in hosts if not host.is_local]
        self._hosts = hosts
        if others:
            raise LaunchError(
                f"'{self._script}' names host '{others[0]}': ranks join on the launcher's own host only"
            )

    def _report(self, problem: str) -> None:
        if problem != self._reported:
            self._reported = problem
            say(f"--host-discovery-script: {problem}")
