"""Which ranks are slow, always or now and then, and what a tolerance of delays would gain. Pure.

Stale synchronous parallel with bound s (Ho et al., "More effective distributed ML via a stale synchronous parallel
parameter server", 2013): a rank begins step k once all have ended step k - 1 - s. Which step times come of it follows
from the ranks' own times as they were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rueda.report.recording_format import rank_name

__all__ = ["BOUNDS", "Straggler", "find_stragglers", "time_with_bound"]

BOUNDS: tuple[float, ...] = (0, 1, 4, 16, float("inf"))
# A rank is permanently slow whose own time in a step is by so much above the others' median, in so many of the steps.
_SLOWER = 1.1
_NEARLY_ALWAYS = 0.75
# A step that takes so many times the rank's median is a slow one; a rank is slow now and then where so many are.
_OUTLIER = 1.5
_SOMETIMES = 0.01
# Steps from which anything can be said, and of which the first are not looked at.
_ENOUGH = 8
_MAX_STEPS = 20_000
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Straggler:
    """``kind``: "permanent" or "transient"; ``epoch``: of the world in which it was ``rank`` first.

    - ``factor``: of a permanent one its median step over the others'; otherwise its slow steps over its median.
    - ``share``: of its steps, that are slow.
    - ``waited_for``: seconds that all other ranks together have waited for it in their steps, after those that warm up.
    """

    rank: int
    kind: str
    factor: float
    share: float
    waited_for: float
    epoch: int = 0

    @property
    def name(self) -> str:
        """Of the rank, which no other has."""
        return rank_name(self.rank, self.epoch)


def find_stragglers(
    ranks: Sequence[int], own: Seconds, waited_for: Sequence[float]
) -> list[Straggler]:
    """From ``own``, (ranks, steps): each rank's own time in each step. The worst first."""
    found = []
    if own.shape[0] < 2 or own.shape[1] < _ENOUGH:
        return []
    for number, rank in enumerate(ranks):
        others = np.median(np.delete(own, number, 0), 0)
        mine = own[number]
        median = float(np.median(mine))
        factor = median / max(float(np.median(others)), 1e-12)
        share = float((mine > (1 + _SLOWER) / 2 * others).mean())
        slow = mine > _OUTLIER * median
        if factor > _SLOWER and share >= _NEARLY_ALWAYS:
            found.append(Straggler(rank, "permanent", factor, share, waited_for[number]))
        elif slow.mean() >= _SOMETIMES and slow.sum() > 1:
            times = float(mine[slow].mean()) / max(median, 1e-12)
            found.append(
                Straggler(rank, "transient", times, float(slow.mean()), waited_for[number])
            )
    return sorted(found, key=lambda each: (each.kind, -each.waited_for))


def time_with_bound(own: Seconds, bound: float) -> float:
    """Seconds until all ranks have done the steps of ``own``, (ranks, steps), with this bound on their distance.

    Of more than 20,000 steps the first ones.
    """
    steps = min(own.shape[1], _MAX_STEPS)
    if bound == float("inf"):
        return float(own[:, :steps].sum(1).max())
    lag = int(bound) + 1
    ended = np.zeros(own.shape[0])
    all_ended = np.zeros(steps + 1)  # of each step, from 1 on
    for step in range(steps):
        may_begin = all_ended[max(0, step + 1 - lag)]
        ended = np.maximum(ended, may_begin) + own[:, step]
        all_ended[step + 1] = ended.max()
    return float(ended.max())
