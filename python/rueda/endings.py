"""How processes of the job have ended, as far as the launcher tells.

Only the parent of a process gets to know its exit code, or the signal that has ended it. ``rueda run`` says it to
ranks of all hosts that ask, which they do once they have lost one; what it has not noticed yet comes a moment later.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from typing import Any

from rueda.launcher_session import Session

__all__ = ["Ending", "Endings", "endings", "manner_of"]

# How errors name a process that is there no more.
_GONE = re.compile(r"rank \d+ \(([^,()]+), pid (\d+)\) is gone")
# Within which the launcher says how a process has ended whose sockets have closed; seconds.
_TIMEOUT = 0.5


@dataclass(frozen=True)
class Ending:
    """How a process has ended: ``status`` as ``subprocess`` has it, negative for a signal, and the same in words."""

    status: int
    how: str


class Endings:
    """What the launcher has told this process. Nothing is known before :meth:`ask`."""

    def __init__(self) -> None:
        self._process: int | None = None  # that has asked; a fork asks by itself
        self._session: Session | None = None
        self._known: dict[tuple[str, int], Ending] = {}

    def ask(self) -> None:
        """Asks the launcher, where there is one on this host; does not wait for what it says."""
        if self._process == os.getpid() and (self._session is None or self._session.is_open):
            return
        self._process = os.getpid()
        self._session = None
        address = os.environ.get("RUEDA_LAUNCHER", "")
        if not address.startswith("@"):
            return
        with contextlib.suppress(OSError):  # it has ended
            self._session = Session(address, endings=True)

    def of(self, host: str, process_id: int) -> Ending | None:
        """How the process has ended, as far as the launcher has said so by now."""
        self._listen()
        return self._known.get((host, process_id))

    def await_of(self, host: str, process_id: int, timeout: float) -> Ending | None:
        """The same, once the launcher has said so, within so many seconds; asks it where nobody has."""
        self.ask()
        deadline = time.monotonic() + timeout
        while (known := self.of(host, process_id)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or self._session is None or not self._session.is_open:
                break
            self._session.wait(left)
        return known

    def _listen(self) -> None:
        if self._session is None or self._process != os.getpid():
            return
        for message in self._session.receive():
            ended = message.get("ended")
            for each in ended if isinstance(ended, list) else []:
                self._note(each)

    def _note(self, told: Any) -> None:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            process = (str(told["host"]), int(told["pid"]))
            self._known[process] = Ending(int(told["status"]), str(told["how"]))


endings = Endings()
"""Of this process."""


def manner_of(text: str) -> str:
    """What is to be added to an error's text where it names a process that is gone: how that has ended, or nothing.

    Waits for the launcher, for a short time and where nothing else tells it.
    """
    process = _GONE.search(text)
    if process is None:
        return ""
    from rueda.recovery import can_recover  # which imports this module

    timeout = 0.0 if can_recover() else _TIMEOUT
    known = endings.await_of(process[1], int(process[2]), timeout)
    if known is None:
        return ""
    return f"; it was {known.how}" if known.status < 0 else f"; it has ended with {known.how}"
