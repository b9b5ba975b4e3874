"""Exceptions of one rank that the other ranks raise as well."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from rueda.error_texts import describe
from rueda.errors import PeerLostError, RuedaError, ShutdownError

__all__ = ["Failure", "first_cause", "report", "without_constructor"]


class _Elsewhere(Exception):
    """Where an error was first raised, as text."""


@dataclass(frozen=True)
class _Parts:
    """An exception whose constructor is not called again: it may take other arguments than ``args``."""

    kind: type[Exception]
    args: tuple[Any, ...]
    state: dict[str, Any]

    def joined(self) -> Exception:
        """The exception. Raises whatever Python's own class does if it cannot have these arguments."""
        base = _base_of(self.kind)
        error: Exception = base.__new__(self.kind, *self.args)
        base.__init__(error, *self.args)  # an OSError's, for example, also sets errno
        error.__setstate__(self.state)
        return error


@dataclass(frozen=True)
class Failure:
    """A rank's exception, in a form that can be sent to others.

    ``error``: on the rank that raised it, the exception itself. ``sent``: what others get for it.
    """

    rank: int
    error: Exception
    trace: str
    sent: Exception | _Parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.rank, self.trace, self.sent)

    def is_copy_of(self, other: Failure) -> bool:
        """Whether both describe the same exception, each as it is on its own rank."""
        return (self.rank, self.trace) == (other.rank, other.trace)

    def here(self) -> Exception:
        """The error to raise on another rank: of the same class, with the rank and its traceback as the cause."""
        self.error.__cause__ = _Elsewhere(f"on rank {self.rank}:\n{self.trace}")
        note = f"raised on rank {self.rank}"
        if hasattr(self.error, "add_note") and note not in getattr(self.error, "__notes__", ()):
            self.error.add_note(note)  # Python 3.11
        return self.error


def report(rank: int, error: Exception, pickler: Any = pickle) -> Failure:
    """An error, which is sent to other ranks as far as ``pickler`` can handle it.

    They get the error itself, or one of its class with its ``args`` and those attributes that can be pickled; a
    RuedaError with its text if its class or ``args`` cannot be.
    """
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    text = describe(type(error), error)
    sent = error if _survives(error, text, pickler) else _parts_of(error, pickler)
    return Failure(rank, error, trace, sent or RuedaError(text))


def without_constructor(error: Exception, pickler: Any = pickle) -> Exception | None:
    """Another error of the same class, with its ``args`` and what ``pickler`` can handle of its attributes.

    ``None`` if the class or ``args`` cannot be pickled.
    """
    parts = _parts_of(error, pickler)
    return None if parts is None else parts.joined()


def first_cause(failures: list[Failure]) -> Failure:
    """The failure of several to report: preferably one that does not follow from another rank's."""
    own = [one for one in failures if not isinstance(one.error, ShutdownError | PeerLostError)]
    return (own or failures)[0]


def _received(rank: int, trace: str, sent: Exception | _Parts) -> Failure:
    return Failure(rank, sent.joined() if isinstance(sent, _Parts) else sent, trace, sent)


def _survives(error: Exception, text: str, pickler: Any) -> bool:
    """Whether an error arrives with its text: its own constructor may raise, or make another text of the first one."""
    try:
        back = pickler.loads(pickler.dumps(error))
    except Exception:  # whatever its own constructor or __reduce__ raises
        return False
    return isinstance(back, Exception) and describe(type(back), back) == text


def _parts_of(error: Exception, pickler: Any) -> _Parts | None:
    """What is needed to make the error without its constructor; ``None`` if that cannot be pickled."""
    kind = type(error)
    # Of Python's own class: the error's class may have a __reduce__ that fails.
    try:
        _, args, *states = _base_of(kind).__reduce__(error)
    except Exception:
        return None
    state = {name: value for each in states for name, value in (each or {}).items()}
    kept = {name: value for name, value in state.items() if _can_be_sent(value, pickler)}
    parts = _Parts(kind, args, kept)
    # Its text may need an attribute that is left out, so it may be another.
    try:
        pickler.loads(pickler.dumps(parts)).joined()
    except Exception:
        return None
    return parts


def _can_be_sent(value: object, pickler: Any) -> bool:
    try:
        pickler.loads(pickler.dumps(value))
    except Exception:
        return False
    return True


def _base_of(kind: type[Exception]) -> Any:
    """The class of Python's own that the error's class derives from."""
    return next(each for each in kind.__mro__ if each.__module__ == "builtins")
