"""``sys.exit()`` in a function that an engine's worker calls, whose process serves others afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rueda.errors import RuedaError

__all__ = ["without_exit"]


def without_exit(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What ``fn`` returns; ``None`` where it exits in good order. Raises :class:`rueda.RuedaError` for another exit.

    Example::

        >>> import sys
        >>> without_exit(sys.exit, 0)
        >>> without_exit(sys.exit, "no data")
        Traceback (most recent call last):
        rueda.errors.RuedaError: sys.exit('no data')
    """
    try:
        return fn(*args, **kwargs)
    except SystemExit as end:
        if end.code in (None, 0):
            return None
        raise RuedaError(f"sys.exit({end.code!r})") from end
