"""Ranks that an engine has placed: how they are numbered, and whose error is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rueda.errors import InitializationError, PeerLostError, ShutdownError, error_in

__all__ = ["failed_by_itself", "in_order_of_hosts", "noted"]


def in_order_of_hosts(hosts: Sequence[str]) -> list[int]:
    """The tasks' numbers in the order of their ranks: by host, so that ranks of a host follow each other, then by task.

    Example::

        >>> in_order_of_hosts(["b", "a", "b", "a"])
        [1, 3, 0, 2]
    """
    return sorted(range(len(hosts)), key=lambda task: (hosts[task], task))


def failed_by_itself(errors: Mapping[int, BaseException]) -> int | None:
    """The lowest rank whose error does not tell of another rank's; ``None`` where all do.

    That a world was not formed may be either, and so counts only where no rank has another error. Of such ranks it is
    the one that comes first in ``errors``, which has them as they were noticed. Errors of another API count as those of
    Rueda that they are translated from.

    If there is nothing but :class:`rueda.ShutdownError`, a rank has returned while others still called collectives.
    Then it is a rank whose error names one that returned, rather than one that has left because of such an error.

    Example::

        >>> failed_by_itself({0: PeerLostError("rank 1 has failed", 1), 1: ValueError("a bad row")})
        1
    """
    meant = {rank: error_in(error) or error for rank, error in errors.items()}
    own = [rank for rank, error in meant.items() if not _is_echo(error)]
    formed = [rank for rank in own if not isinstance(meant[rank], InitializationError)]
    if own:
        return min(formed, default=own[0])
    if not all(isinstance(error, ShutdownError) for error in meant.values()):
        return None
    return min(
        errors, key=lambda rank: (getattr(meant[rank], "peer", None) in errors, rank), default=None
    )


def _is_echo(error: BaseException) -> bool:
    if isinstance(error, InitializationError):
        return error.reason == "rendezvous_closed"
    return isinstance(error, PeerLostError | ShutdownError)


def noted(error: BaseException, where: str) -> BaseException:
    """The error itself, with a note of where it was raised (Python 3.11)."""
    if hasattr(error, "add_note"):
        error.add_note(f"raised on {where}")
    return error
