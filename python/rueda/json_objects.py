"""Objects of JSON that another process has sent, or left in a file: whatever it is, it is understood or refused."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["read_object"]

# What is nested this deeply can be handed on and written again, however deep the stack is where that is done.
_MAX_DEPTH = 32


def read_object(text: bytes | str) -> dict[str, Any]:
    """The object that ``text`` is. Raises ``ValueError`` for everything else.

    Example::

        >>> read_object(b'{"ready": 3}')
        {'ready': 3}
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    if _is_deeper(value, _MAX_DEPTH):
        raise ValueError("nested too deeply")
    return value


def _is_deeper(value: object, depth: int) -> bool:
    """Whether there is a list or an object in so many others."""
    level = [value]
    for _ in range(depth):
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return True
