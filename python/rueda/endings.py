"""How processes of the job ended, as reported by the launcher.

Only the parent of a process learns its exit code or the signal that ended it. ``rueda run`` reports it to any rank on
any host that asks. Ranks of a job that may recover ask in ``init()``, others once they have lost a rank. What the
launcher has not noticed yet, it reports later.
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

# How errors name a process that is gone.
_GONE = re.compile(r"rank \d+ \(([^,()]+), pid (\d+)\) is gone")
# How long to wait for the launcher to report how a process ended after its sockets have closed; seconds.
_TIMEOUT = 0.5


@dataclass(frozen=True)
class Ending:
    """How a process ended: ``status`` as in ``subprocess``, negative for a signal, and the same in words."""

    status: int
    how: str


class Endings:
    """What the launcher has told this process. Empty before :meth:`ask`."""

    def __init__(self) -> None:
        self._process: int | None = None  # the process that asked; a forked child asks for itself
        self._session: Session | None = None
        self._known: dict[tuple[str, int], Ending] = {}

    def ask(self) -> None:
        """Asks the launcher, if there is one on this host; does not wait for the answer. Once is enough."""
        self._listen()  # a launcher that had much to tell meanwhile has closed a session that nobody read
        if self._process == os.getpid() and (self._session is None or self._session.is_open):
            return
        self._process = os.getpid()
        self._session = None
        address = os.environ.get("RUEDA_LAUNCHER", "")
        if not address.startswith("@"):
            return
        with contextlib.suppress(OSError):  # the launcher has ended
            self._session = Session(address, endings=True)

    def of(self, host: str, process_id: int) -> Ending | None:
        """How the process ended, if the launcher has reported it by now."""
        self._listen()
        return self._known.get((host, process_id))

    def await_of(self, host: str, process_id: int, timeout: float) -> Ending | None:
        """The same, but asks the launcher if needed and waits up to ``timeout`` seconds for its report."""
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
    """The words to append to an error's text that names a process that is gone: how that process ended, or nothing.

    Waits briefly for the launcher, unless recovery is possible, which reports it.
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
