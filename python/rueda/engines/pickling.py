"""What an engine is to carry to its workers, pickled before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rueda.errors import InvalidArgumentError

__all__ = ["pickled"]


def pickled(dumps: Callable[[Any], bytes], what: str, value: object) -> bytes:
    """``value`` by ``dumps``, the engine's own. Raises :class:`rueda.InvalidArgumentError` where it takes it not.

    Example::

        >>> import pickle
        >>> pickled(pickle.dumps, "the function", lambda: 1)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        rueda.errors.InvalidArgumentError: the function cannot be pickled: ...
    """
    try:
        return dumps(value)
    except Exception as error:  # whatever an object's own __reduce__ raises
        raise InvalidArgumentError(
            f"{what} cannot be pickled: {type(error).__name__}: {error}"
        ) from error
