"""Exceptions of one rank that the other ranks raise as well."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from rueda.errors import PeerLostError, RuedaError, ShutdownError

__all__ = ["Failure", "first_cause", "report"]


class _Elsewhere(Exception):
    """Where an error was first raised, as text."""


@dataclass(frozen=True)
class Failure:
    """A rank's exception, in a form that can be sent to others."""

    rank: int
    error: Exception
    trace: str

    def here(self) -> Exception:
        """The error to raise on another rank: of the same class, with the rank and its traceback as the cause."""
        self.error.__cause__ = _Elsewhere(f"on rank {self.rank}:\n{self.trace}")
        note = f"raised on rank {self.rank}"
        if hasattr(self.error, "add_note") and note not in getattr(self.error, "__notes__", ()):
            self.error.add_note(note)  # Python 3.11
        return self.error


def report(rank: int, error: Exception, pickler: Any = pickle) -> Failure:
    """An error as sent to other ranks: itself, or a RuedaError with its text if ``pickler`` cannot handle it."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickler.loads(pickler.dumps(error))
    except Exception:  # whatever its own constructor or __reduce__ raises
        error = RuedaError(f"{type(error).__name__}: {error}")
    return Failure(rank, error, trace)


def first_cause(failures: list[Failure]) -> Failure:
    """The failure of several to report: preferably one that does not follow from another rank's."""
    own = [one for one in failures if not isinstance(one.error, ShutdownError | PeerLostError)]
    return (own or failures)[0]
