"""Errors with files, and how every rank learns of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rueda.errors import RuedaError

__all__ = ["CheckpointError", "Problem", "problem_of", "raise_first"]


class CheckpointError(RuedaError):
    """A checkpoint could not be written or read; the text names the rank, the file and the reason.

    ``path``: the file or folder at fault, if there is one. ``errno``: the system's number for the reason, such as
    ``errno.ENOSPC``, if there is one. ``peer``: the rank with the error. The same on every rank.

    Example::

        >>> try:
        ...     loaded = rueda.checkpoint.load("/nowhere", step=3)
        ... except rueda.checkpoint.CheckpointError as error:
        ...     print(error.path)
        /nowhere
    """

    recurs = True
    path: str | None
    errno: int | None

    def __init__(
        self,
        message: str = "",
        peer: int | None = None,
        *,
        path: str | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(message, peer)
        self.path = path
        self.errno = errno


@dataclass(frozen=True)
class Problem:
    """A rank's error, as the others get it."""

    rank: int
    text: str
    path: str | None = None
    errno: int | None = None


def problem_of(error: Exception, rank: int, path: Path | None = None) -> Problem:
    """The problem that describes ``error`` to the others; ``path``: what this rank was working on."""
    if isinstance(error, CheckpointError):
        return Problem(rank, str(error), error.path, error.errno)
    if isinstance(error, OSError):
        where = path if error.filename is None else error.filename
        reason = error.strerror or type(error).__name__
        number = "" if error.errno is None else f" (errno {error.errno})"
        return Problem(rank, f"{where}: {reason}{number}", str(where), error.errno)
    where = "" if path is None else f"{path}: "
    told = None if path is None else str(path)
    return Problem(rank, f"{where}{type(error).__name__}: {error}", told)


def raise_first(problems: Iterable[Problem | None], what: str) -> None:
    """Raises :class:`CheckpointError` for the first rank with a problem, naming the other such ranks."""
    found = [problem for problem in problems if problem is not None]
    if not found:
        return
    first = found[0]
    others = [problem.rank for problem in found[1:]]
    more = f"; ranks {others} have failed as well" if others else ""
    raise CheckpointError(
        f"{what}: rank {first.rank}: {first.text}{more}",
        first.rank,
        path=first.path,
        errno=first.errno,
    )
