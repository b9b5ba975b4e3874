"""What a function of ``RayExecutor.run()`` tells the driver while it runs."""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["configure", "log"]

_queue: Any = None
_has_warned = False


def configure(queue: Any) -> None:
    """Where :func:`log` puts what it is given, from now on; ``None`` for nowhere. ``run()`` calls it."""
    global _queue
    _queue = queue


def log(info_dict: Any) -> None:
    """Has the driver call its callbacks with ``info_dict``, on rank 0; those of other ranks are not called.

    Warns once where no ``callbacks`` were given to ``run()`` or ``execute()``.

    Example::

        >>> ray_logger.log({"epoch": 3, "loss": 0.2})  # doctest: +SKIP
    """
    global _has_warned
    if _queue is not None:
        _queue.put(info_dict)
    elif not _has_warned:
        _has_warned = True
        warnings.warn(
            "ray_logger.log() tells nobody: give callbacks= to run() or execute()", stacklevel=2
        )
