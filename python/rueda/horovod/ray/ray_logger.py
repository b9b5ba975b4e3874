"""Sends values from a function under ``RayExecutor.run()`` to the driver while it runs."""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["configure", "log"]

_queue: Any = None
_has_warned = False


def configure(queue: Any) -> None:
    """Sets the queue that :func:`log` writes to, ``None`` for none. ``run()`` calls this."""
    global _queue
    _queue = queue


def log(info_dict: Any) -> None:
    """On rank 0, makes the driver call its callbacks with ``info_dict``; on other ranks, does nothing.

    Warns once if ``run()`` or ``execute()`` was given no ``callbacks``.

    Example::

        >>> ray_logger.log({"epoch": 3, "loss": 0.2})  # doctest: +SKIP
    """
    global _has_warned
    if _queue is not None:
        _queue.put(info_dict)
    elif not _has_warned:
        _has_warned = True
        warnings.warn(
            "ray_logger.log() has no callbacks to call: give callbacks= to run() or execute()",
            stacklevel=2,
        )
