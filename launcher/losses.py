"""How many ranks a job may lose and go on with the others."""

from __future__ import annotations

from collections.abc import Mapping

from .environment import choice_of
from .errors import LaunchError
from .failure import Failure


class Losses:
    """The ranks that a job has lost, and whether it goes on without them.

    Only a job whose ranks recover (RUEDA_RECOVERY=on) goes on, while at least RUEDA_MIN_NP of them are left.
    """

    def __init__(self, ranks: int, variables: Mapping[str, str]) -> None:
        """`variables`: what the ranks get. Raises LaunchError for a least number that cannot be."""
        self._ranks = ranks
        self._recovers = choice_of("RUEDA_RECOVERY", variables) == "on"
        self._least = (
            least_of(ranks, variables.get("RUEDA_MIN_NP") or "1") if self._recovers else ranks
        )
        self._lost: list[Failure] = []

    def bears(self, *failures: Failure) -> bool:
        """Whether the job goes on without these ranks, too, which is noted then."""
        if not self._recovers or self._ranks - len(self._lost) - len(failures) < self._least:
            return False
        self._lost += failures
        return True

    def describe(self, failure: Failure, is_certain: bool = True) -> str:
        """What to say when a rank is lost; `is_certain`: nothing else will turn out to be the cause."""
        where = f"rank {failure.rank}" + (f" on {failure.host}" if failure.host else "")
        goes_on = "; the other ranks go on" if is_certain else ""
        return f"{where} is lost, {failure.describe_status()}{goes_on}"


def least_of(ranks: int, text: str) -> int:
    """What RUEDA_MIN_NP asks for; raises LaunchError where that cannot be."""
    try:
        least = int(text)
    except ValueError:
        raise LaunchError(f"RUEDA_MIN_NP='{text}' is no number of ranks") from None
    if not 1 <= least <= ranks:
        raise LaunchError(
            f"--min-np {least}: a job of {ranks} ranks needs a number from 1 to {ranks}"
        )
    return least
