"""When operations were handed in, by one clock for all ranks. Pure.

Ranks of one machine share a monotonic clock. Between machines its difference follows from what was recorded. An
operation of all ranks is done on none before each has handed it in: with submission s and completion e of the same
operation, and d what has to be added to the times of rank b to have those of rank a, s_a - e_b <= d <= e_a - s_b,
whatever the network did (as Cristian, "Probabilistic clock synchronization", 1989, bounds it by messages there and
back). And it is done on all at nearly the same time: d is the median of e_a - e_b in a stretch of the run, within the
closest bounds of that stretch. Stretches are short against what clocks drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["STRETCHES", "Offset", "Operations", "matched", "offset_between"]

# Into how many a run is divided.
STRETCHES = 64
# Operations of a stretch, at least.
_FEWEST = 8
_NEVER = np.iinfo(np.int64).min
_ALWAYS = np.iinfo(np.int64).max

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Operations:
    """Of one rank, by key: when each was handed in, and when it was known to be done (at the latest)."""

    submitted: Mapping[int, Times]
    done: Mapping[int, Times]


@dataclass(frozen=True)
class Offset:
    """What has to be added to times of a rank: linear between points, constant beyond them.

    ``uncertainty``: nanoseconds by which single operations differ from it, in the median; 0 of the same clock.
    ``operations``: how many it follows from.
    """

    at: Times
    by: Times
    uncertainty: float
    operations: int = 0

    def __call__(self, times: Times) -> Times:
        """The times by the clock of all."""
        if not len(self.at):
            return times
        return times + _interpolated(times, self.at, self.by)

    def back(self, times: Times) -> Times:
        """The rank's own times, of those by the clock of all."""
        if not len(self.at):
            return times
        return times - _interpolated(times, self.at + self.by, self.by)


def _interpolated(times: Times, at: Times, by: Times) -> Times:
    """Of differences from the first, which a float holds to the nanosecond."""
    first, base = at[0], by[0]
    differences = np.rint(np.interp(times - first, at - first, by - base)).astype(np.int64)
    return np.asarray(base + differences)


SAME = Offset(np.empty(0, np.int64), np.empty(0, np.int64), 0.0)


def offset_between(a: Operations, b: Operations) -> Offset | None:
    """From the clock of ``b`` to that of ``a``; None where they have no operation in common."""
    lows, highs, moments, differences = [], [], [], []
    for key, submitted in a.submitted.items():
        if key not in b.submitted:
            continue
        count = min(len(submitted), len(b.submitted[key]))
        ours, theirs = submitted[:count], b.submitted[key][:count]
        our_end, their_end = a.done[key][:count], b.done[key][:count]
        known = (our_end != _ALWAYS) & (their_end != _ALWAYS)
        lows.append((ours - their_end)[known])
        highs.append((our_end - theirs)[known])
        moments.append(theirs[known])
        differences.append((our_end - their_end)[known])
    if not moments or not sum(map(len, moments)):
        return None
    low, high, moment, difference = map(np.concatenate, (lows, highs, moments, differences))
    order = np.argsort(moment, kind="stable")
    at, by, apart = [], [], []
    for part in np.array_split(order, max(1, min(STRETCHES, len(order) // _FEWEST))):
        least, most = int(low[part].max()), int(high[part].min())
        middle = _middle(difference[part])
        at.append(_middle(moment[part]))
        by.append(min(max(middle, least), most) if least <= most else middle)
        apart.append(np.abs(difference[part] - by[-1]))
    uncertainty = float(np.median(np.concatenate(apart)))
    return Offset(np.array(at), np.array(by), uncertainty, len(order))


def _middle(values: Times) -> int:
    """A median that is one of the values: they are too large for the mean of two as a float."""
    return int(np.sort(values)[len(values) // 2])


def matched(
    ranks: Sequence[Operations], offsets: Sequence[Offset]
) -> dict[int, tuple[Times, npt.NDArray[np.int64]]]:
    """By key and for each operation of it: when the last rank handed it in, by the clock of all, and which that was.

    Of those that only one rank has recorded, that one.
    """
    found = {}
    for key in {key for rank in ranks for key in rank.submitted}:
        count = max(len(rank.submitted.get(key, ())) for rank in ranks)
        times = np.full((len(ranks), count), _NEVER)
        for row, rank, offset in zip(times, ranks, offsets, strict=True):
            own = rank.submitted.get(key)
            if own is not None:
                row[: len(own)] = offset(own)
        found[key] = (times.max(0), times.argmax(0))
    return found
