"""How processes of the job have ended, as far as the launcher tells.

Only the parent of a process gets to know its exit code, or the signal that has ended it. ``rueda run`` on one host says
it to ranks that ask, which they do once they have lost one; what it has not noticed yet comes a moment later.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

from rueda.launcher_session import Session

__all__ = ["Ending", "Endings", "endings"]


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
