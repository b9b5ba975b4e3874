"""Notices processes that wait to join and do not answer any more."""

from __future__ import annotations

from collections.abc import Iterable

# Seconds between looks.
LOOK = 0.2
# Looks without a message after which a process counts as silent. A waiting process sends two messages a second.
_LOOKS = 15


class Attention:
    """Which waiting processes have not been heard of lately: they are frozen, or their host is.

    Counts looks instead of seconds, so that time in which the launcher itself does not run does not count.
    """

    def __init__(self) -> None:
        self._looks: dict[int, int] = {}  # since its last message

    def heard(self, number: int) -> None:
        """A process says that it waits."""
        self._looks[number] = 0

    def look(self, waiting: Iterable[int]) -> None:
        """Call it periodically, after reading messages. Forgets processes that do not wait any more."""
        self._looks = {n: self._looks[n] + 1 for n in waiting if n in self._looks}

    @property
    def silent(self) -> list[int]:
        """The waiting processes that do not answer."""
        return sorted(number for number, looks in self._looks.items() if looks >= _LOOKS)
