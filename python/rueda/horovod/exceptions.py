"""The exceptions of Horovod's API, and their mapping from Rueda's errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from rueda.errors import (
    DuplicateNameError,
    InitializationError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    RuedaError,
    ShutdownError,
    StalledError,
    UnsupportedError,
)
from rueda.horovod.forks import is_child

__all__ = [
    "HorovodInitializationError",
    "HorovodInternalError",
    "HorovodInvalidArgumentError",
    "HorovodUsageError",
    "HostsUpdatedInterrupt",
    "translated",
    "translated_by",
    "translating",
    "translation_of",
]

P = ParamSpec("P")
T = TypeVar("T")


class HorovodInternalError(RuntimeError):
    """A collective failed. ``__cause__`` is the :class:`rueda.RuedaError` with the reason and the rank.

    Example::

        >>> try:
        ...     mean = hvd.allreduce(torch.ones(2), name="loss")
        ... except hvd.HorovodInternalError as error:
        ...     print(error, error.__cause__.peer)
    """

    # Same as __cause__, which is lost when an engine sends the error to its driver.
    translated_from: RuedaError | None = None


class HorovodInvalidArgumentError(HorovodInternalError, ValueError, TypeError):
    """The call can never work, such as an average of booleans. Horovod raises ValueError in some of these cases."""


class HorovodInitializationError(HorovodInternalError, ValueError):
    """The world could not be formed. Horovod raises ValueError."""


class HorovodUsageError(HorovodInvalidArgumentError, AssertionError):
    """Optimizer methods were called in the wrong order. Horovod raises AssertionError."""


class HostsUpdatedInterrupt(RuntimeError):
    """The job's hosts are about to change: training restarts from the current state.

    ``skip_sync``: whether to skip the broadcast of the state, because ranks only leave.

    Example::

        >>> hvd.HostsUpdatedInterrupt(skip_sync=True).skip_sync
        True
    """

    # Whether every rank raises it at the same point, as State.check_host_updates() does.
    is_agreed = False

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


def _mismatch(field: str | None) -> str:
    """Returns the phrase in Horovod's message for a mismatch of ``field``."""
    phrases = {
        "shape": "Mismatched tensor shapes",
        "dtype": "Mismatched data types",
        "op": "Mismatched reduction operations",
        "operation": "Mismatched collective operations",
        "root rank": "Mismatched root ranks",
    }
    return phrases.get(field or "", "Mismatched requests")


def _phrase(error: RuedaError) -> str:
    if isinstance(error, MismatchError):
        return _mismatch(error.field)
    phrases: dict[type[RuedaError], str] = {
        DuplicateNameError: "Duplicate tensor name: same name as another tensor that is currently being processed",
        StalledError: "Stalled: submitted by a subset of ranks",
        PeerLostError: "Horovod has been shut down",
        ShutdownError: "Horovod has been shut down",
    }
    for kind, phrase in phrases.items():
        if isinstance(error, kind):
            return phrase
    return ""


def translation_of(error: RuedaError) -> Exception:
    """Returns Horovod's exception for a Rueda error; its text begins with Horovod's own phrase.

    Example::

        >>> translation_of(ShutdownError("rank 1 has shut down"))
        HorovodInternalError('Horovod has been shut down: rank 1 has shut down')
    """
    if isinstance(error, NotInitializedError) and is_child():
        return ValueError(f"Horovod has not been initialized in this process: {error}")
    if isinstance(error, NotInitializedError):
        return ValueError("Horovod has not been initialized; use hvd.init().")
    phrase = _phrase(error)
    kind: type[HorovodInternalError] = HorovodInternalError
    if isinstance(error, InitializationError):
        kind = HorovodInitializationError
    elif isinstance(error, InvalidArgumentError | UnsupportedError | DuplicateNameError):
        kind = HorovodInvalidArgumentError
    made = kind(f"{phrase}: {error}" if phrase else str(error))
    made.translated_from = error
    return made


@contextmanager
def translating() -> Iterator[None]:
    """Context that converts Rueda's errors to those of Horovod's API."""
    try:
        yield
    except RuedaError as error:
        raise translation_of(error) from error


def translated_by(
    translation: Callable[[RuedaError], BaseException],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Returns a decorator that converts Rueda's errors by ``translation``."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except RuedaError as error:
                raise translation(error) from error

        return wrapper

    return decorate


def translated(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator that converts Rueda's errors to those of Horovod's API."""
    return translated_by(translation_of)(function)
