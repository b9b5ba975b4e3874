"""JSON objects from another process or a file, parsed strictly: anything else is refused."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["read_object"]

# Values nested no deeper than this can be passed on and serialized again, however deep the stack already is.
_MAX_DEPTH = 32


def read_object(text: bytes | str) -> dict[str, Any]:
    """Parses ``text`` as a JSON object. Raises ``ValueError`` for everything else.

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
    """Whether lists and objects are nested more than ``depth`` deep."""
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
