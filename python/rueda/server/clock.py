"""How many steps a rank has reported to a table's owners."""

from __future__ import annotations

import threading

from rueda import _native

__all__ = ["Clock"]

_LOOK_AT_LEAST = 16  # reports under way before it is first asked which have ended


class Clock:
    """The number of steps that a rank has reported, except those whose report has ended with an error.

    A report counts from its submission on: owners execute the requests of one rank in order. One that an owner has
    refused was not counted there, so that nobody must wait for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # several threads may use a table
        self._steps = 0
        self._under_way: list[_native.Handle] = []
        self._next_look = _LOOK_AT_LEAST

    def now(self) -> int:
        with self._lock:
            self._settle()
            return self._steps

    def count(self, report: _native.Handle) -> None:
        """Counts a step that has just been reported."""
        with self._lock:
            self._steps += 1
            self._under_way.append(report)
            if len(self._under_way) >= self._next_look:
                self._settle()
                # However many are under way, each is looked at only a few times on average.
                self._next_look = max(_LOOK_AT_LEAST, 2 * len(self._under_way))

    def set(self, steps: int) -> None:
        """Continues from ``steps``, whatever becomes of earlier reports."""
        with self._lock:
            self._steps = steps
            self._under_way = []

    def _settle(self) -> None:
        left, refused = [], 0
        for report in self._under_way:
            if not report.done():
                left.append(report)
            elif _has_failed(report):
                refused += 1
        self._steps -= refused
        self._under_way = left


def _has_failed(report: _native.Handle) -> bool:
    try:
        report.check()
    except Exception:  # whoever waits for it gets the error
        return True
    return False
