"""By how much a verdict may be wrong that is asked for again and again, with more seeds each time.

Each look at runs that still were undecided is another chance to be wrong. The first has all of a verdict's share, as
most are not followed by another; each further one has half of that of the look before. So all looks together are
wrong with at most twice the share, however many there are.
"""

from __future__ import annotations

__all__ = ["further_look", "share_of_look"]


def further_look(alpha: float) -> float:
    """What the look after one with ``alpha`` may be wrong by."""
    return alpha / 2


def share_of_look(alpha: float, earlier: int) -> float:
    """What a look may be wrong by, after so many earlier ones; ``alpha`` is the first one's."""
    for _ in range(earlier):
        alpha = further_look(alpha)
    return alpha
