"""What callers give to the functions that run ranks, checked before an engine starts anything.

Each function returns what it is given in the form that is needed, or raises :class:`rueda.InvalidArgumentError`.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rueda.arguments import shown
from rueda.errors import InvalidArgumentError

__all__ = [
    "count_of",
    "function_of",
    "interface_of",
    "keywords_of",
    "place_of",
    "positionals_of",
    "seconds_of",
    "variables_of",
]


def function_of(name: str, value: Any) -> Callable[..., Any]:
    """A function, a class, or whatever else can be called.

    Example::

        >>> function_of("fn", None)
        Traceback (most recent call last):
        rueda.errors.InvalidArgumentError: fn=None cannot be called: pass a function, without calling it
    """
    if not callable(value):
        raise InvalidArgumentError(
            f"{name}={shown(value)} cannot be called: pass a function, without calling it"
        )
    return value  # type: ignore[no-any-return]


def positionals_of(name: str, value: Any) -> tuple[Any, ...]:
    """Arguments in their order; ``None`` for none, as Horovod's executor takes it. A text is no sequence of them.

    Example::

        >>> positionals_of("args", [1, 2])
        (1, 2)
        >>> positionals_of("args", "a")
        Traceback (most recent call last):
        rueda.errors.InvalidArgumentError: args='a': pass a tuple or list of arguments, such as args=('a',)
    """
    if value is None:
        return ()
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise InvalidArgumentError(
            f"{name}={shown(value)}: pass a tuple or list of arguments, such as {name}=({shown(value)},)"
        )
    return tuple(value)


def keywords_of(name: str, value: Any) -> dict[str, Any]:
    """Arguments by name; ``None`` for none.

    Example::

        >>> keywords_of("kwargs", [1])
        Traceback (most recent call last):
        rueda.errors.InvalidArgumentError: kwargs=[1]: pass a dict with the names of arguments as keys
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidArgumentError(
            f"{name}={shown(value)}: pass a dict with the names of arguments as keys"
        )
    return dict(value)


def variables_of(name: str, value: Any) -> dict[str, str]:
    """Variables of the environment; ``None`` for none.

    Example::

        >>> variables_of("env", {"A": 3})
        Traceback (most recent call last):
        rueda.errors.InvalidArgumentError: env={'A': 3}: variable 'A' must be a text, not 3
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"{name}={shown(value)}: pass a dict of environment variables")
    for key, content in value.items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key:
            raise InvalidArgumentError(
                f"{name}={shown(value)}: {shown(key)} is not the name of an environment variable"
            )
        if not isinstance(content, str) or "\0" in content:
            raise InvalidArgumentError(
                f"{name}={shown(value)}: variable {key!r} must be a text, not {shown(content)}"
            )
    return dict(value)


def interface_of(name: str, value: Any) -> str:
    """The first of some network interfaces, or one; empty for none.

    Example::

        >>> interface_of("nics", ["eth0", "eth1"])
        'eth0'
    """
    if isinstance(value, str):
        return value
    names = [""] if value is None else value if isinstance(value, Iterable) else [value]
    if isinstance(names, set | frozenset) and all(isinstance(each, str) for each in names):
        names = sorted(names)  # the same in every process
    first = next(iter(names), "")
    if not isinstance(first, str):
        raise InvalidArgumentError(f"{name}={shown(value)}: pass the names of network interfaces")
    return first


def place_of(name: str, value: Any) -> str:
    """A path or an address, as a text.

    Example::

        >>> place_of("checkpoint", 5)
        Traceback (most recent call last):
        rueda.errors.InvalidArgumentError: checkpoint=5 is not a location: pass a path, or an address with ://
    """
    if not isinstance(value, str | os.PathLike):
        raise InvalidArgumentError(
            f"{name}={shown(value)} is not a location: pass a path, or an address with ://"
        )
    return os.fsdecode(value)


def seconds_of(name: str, value: Any) -> float:
    """A time of 0 seconds or more.

    Example::

        >>> seconds_of("timeout", "1 min")
        Traceback (most recent call last):
        rueda.errors.InvalidArgumentError: timeout='1 min' is not a time: pass a number of seconds, 0 or more
    """
    try:
        seconds = -1.0 if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = -1.0
    if not seconds >= 0:  # which no comparison with NaN is
        raise InvalidArgumentError(
            f"{name}={shown(value)} is not a time: pass a number of seconds, 0 or more"
        )
    return seconds


def count_of(name: str, value: Any, what: str, least: int = 1) -> int:
    """A whole number of ``what``, also one of NumPy's.

    Example::

        >>> count_of("num_proc", 0, "ranks")
        Traceback (most recent call last):
        rueda.errors.InvalidArgumentError: num_proc=0 is not a number of ranks: pass 1 or more
    """
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        raise InvalidArgumentError(
            f"{name}={shown(value)} is not a number of {what}: pass {least} or more"
        )
    return count
