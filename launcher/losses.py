"""Counts lost ranks, and decides whether a job goes on without them."""

from __future__ import annotations

from collections.abc import Mapping

from .environment import choice_of
from .errors import LaunchError
from .failure import Failure


class Losses:
    """The ranks that a job has lost, and whether it goes on without them.

    A job goes on only if its ranks recover (RUEDA_RECOVERY=on), and while at least RUEDA_MIN_NP of them are left or
    have done their work. A rank that has ended before all have met has done none, whatever its exit code.
    """

    def __init__(self, ranks: int, variables: Mapping[str, str]) -> None:
        """`variables`: those of the ranks. Raises LaunchError for an impossible RUEDA_MIN_NP."""
        self._ranks = ranks
        self._recovers = choice_of("RUEDA_RECOVERY", variables) == "on"
        self._least = (
            least_of(ranks, variables.get("RUEDA_MIN_NP") or "1") if self._recovers else ranks
        )
        self._lost: list[Failure] = []
        self._ended_well = 0
        self._have_met = False

    def ended_well(self) -> None:
        """A rank has exited with 0."""
        self._ended_well += 1

    def have_met(self) -> None:
        """All ranks have formed a world."""
        self._have_met = True

    def bears(self, *failures: Failure) -> bool:
        """Whether the job also goes on without these ranks. If so, counts them as lost."""
        idle = 0 if self._have_met else self._ended_well
        left = self._ranks - len(self._lost) - len(failures) - idle
        if not self._recovers or left < self._least:
            return False
        self._lost += failures
        return True

    def describe(self, failure: Failure, is_certain: bool = True) -> str:
        """The sentence for a lost rank. `is_certain`: no other cause will turn up."""
        where = f"rank {failure.rank}" + (f" on {failure.host}" if failure.host else "")
        goes_on = "; the other ranks go on" if is_certain else ""
        return f"{where} is lost, {failure.describe_status()}{goes_on}"


def least_of(ranks: int, text: str) -> int:
    """The value of RUEDA_MIN_NP. Raises LaunchError if it is impossible."""
    try:
        least = int(text)
    except ValueError:
        raise LaunchError(f"RUEDA_MIN_NP='{text}' is not a number of ranks") from None
    if not 1 <= least <= ranks:
        raise LaunchError(
            f"--min-np {least}: a job of {ranks} ranks needs a number from 1 to {ranks}"
        )
    return least
