"""The address at which processes that are to join prove that they can reach this rank."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from rueda import _native
from rueda.door import listen
from rueda.errors import InitializationError

__all__ = ["ProbeListener"]


class ProbeListener:
    """Such an address, open only as long as the launcher or reception names such processes.

    Nothing is read there: that the system accepts a connection is all that they look for. Each world listens at the
    same network interface. ``is_asked``: whether :meth:`answer` has something to say. ``has_answered``: whether it has,
    until that is set to false.
    """

    def __init__(self) -> None:
        self.is_asked = self.has_answered = False
        self._listener: socket.socket | None = None
        self._address = ""
        self.probing: list[int] = []

    def hear(self, probing: list[int]) -> None:
        """Which processes are to prove it now. If none are, the address is closed."""
        self.is_asked = bool(probing) and (self.is_asked or probing != self.probing)
        self.probing = probing
        if not probing and self._listener is not None:
            self._listener.close()
            self._listener = None

    def answer(self, across_hosts: bool, send: Callable[..., Any]) -> None:
        """Sends the address, and opens it before."""
        self.is_asked, self.has_answered = False, True
        if self._listener is None:
            self._open(across_hosts)
        send(probe_at={"address": self._address, "probing": self.probing})

    def ask_again(self) -> None:
        """The last answer may have been lost."""
        self.is_asked = bool(self.probing)

    def _open(self, across_hosts: bool) -> None:
        self._address = ""
        if not across_hosts:
            return
        try:
            self._listener, self._address = listen(_native.options()["interface"])
        except (OSError, InitializationError):
            return  # without an address nobody has to prove anything
