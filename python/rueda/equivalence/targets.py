"""When a training reached a loss, after which step, time and bytes; and when its loss was lost to NaN or infinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rueda.equivalence.record_files import Array, Layout, RankRecord, is_missing

__all__ = [
    "Lost",
    "Reached",
    "default_target",
    "final_loss",
    "has_loss",
    "losses",
    "lost",
    "reached",
    "smooth",
]

# The default target is above the worst last loss by so many times the effect of rounding, at least by this share.
_ROUNDINGS = 2
_LEAST_SLACK = 1e-3


@dataclass(frozen=True)
class Reached:
    """The step in which a loss was reached, seconds since the beginning, and bytes that a rank has sent by then."""

    step: int
    seconds: float
    bytes: float


def _recorded(run: Sequence[RankRecord]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Of each rank the losses of steps 1 to T, and where it has recorded one by then: both (ranks, T).

    A rank that records none in a step has that of its step before.
    """
    found = np.stack([rank.steps[1:, Layout.LOSS] for rank in run])
    steps = np.arange(found.shape[1])
    last_told = np.maximum.accumulate(np.where(is_missing(found), -1, steps), axis=1)
    return np.take_along_axis(found, np.maximum(last_told, 0), axis=1), last_told >= 0


def has_loss(run: Sequence[RankRecord]) -> bool:
    """Whether any rank has recorded a loss in any step, be it NaN."""
    return bool(_recorded(run)[1].any())


def losses(run: Sequence[RankRecord]) -> Array:
    """(T,) of steps 1 to T: the mean over the ranks that tell any, each of which has its share of a batch.

    NaN before the first.
    """
    found, is_told = _recorded(run)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.where(is_told, found, 0.0).sum(0) / is_told.sum(0))


@dataclass(frozen=True)
class Lost:
    """Where a run's loss stopped to be finite; ``rank``: the first that recorded such a loss there, if one did."""

    step: int
    rank: int | None
    loss: float

    def __str__(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank}"
        return f"the loss became {'NaN' if np.isnan(self.loss) else 'infinite'} in step {self.step}{where}"


def lost(run: Sequence[RankRecord]) -> Lost | None:
    """Where the loss ceased to be finite, if it is not at the end; None also for a run without losses.

    A loss that was not finite only for a time, as while a gradient scaler finds its scale, is no end.
    """
    if not has_loss(run) or np.isfinite(final_loss(run)):
        return None
    means = losses(run)
    found, is_told = _recorded(run)
    not_finite = np.flatnonzero(~np.isfinite(means) & is_told.any(0))
    if not len(not_finite):  # only their sum is not
        return Lost(int(run[0].steps[-1, Layout.STEP]), None, float("inf"))
    before = np.flatnonzero(np.isfinite(means[: not_finite[-1]]))
    row = int(not_finite[not_finite > (before[-1] if len(before) else -1)][0])
    ranks = np.flatnonzero(is_told[:, row] & ~np.isfinite(found[:, row]))
    rank = run[ranks[0]].rank if len(ranks) else None
    loss = float(found[ranks[0], row]) if len(ranks) else float(means[row])
    return Lost(int(run[0].steps[row + 1, Layout.STEP]), rank, loss)


def smooth(values: Array) -> Array:
    """The mean of the last twentieth of all steps up to each, or of as many as there are.

    Nothing but these counts, be others huge or not finite: sums are formed from the edges of blocks as long as the
    window, of which it has the end of one and the beginning of the next.
    """
    window = max(1, len(values) // 20)
    with np.errstate(invalid="ignore", over="ignore"):
        return _smooth(values, window)


def _smooth(values: Array, window: int) -> Array:
    blocks = np.concatenate([values, np.zeros(-len(values) % window)]).reshape(-1, window)
    ends = np.cumsum(blocks[:, ::-1], 1)[:, ::-1]
    sums = np.cumsum(blocks, 1)
    sums[1:, :-1] += ends[:-1, 1:]
    return sums.reshape(-1)[: len(values)] / np.minimum(np.arange(1, len(values) + 1), window)


def final_loss(run: Sequence[RankRecord]) -> float:
    """The mean of the last twentieth of all steps; NaN where no loss was recorded."""
    found = losses(run)
    return float(smooth(found)[-1]) if len(found) else float("nan")


def default_target(
    references: Mapping[int, Sequence[RankRecord]], twins: Mapping[int, Sequence[RankRecord]]
) -> float:
    """What a run like the reference reaches with every seed, by seed the reference's runs and their twins'.

    The largest last loss of the reference's runs that did not diverge, and a slack: a run that differs only by
    rounding ends above that very loss as often as below. The slack is twice the most that rounding has changed a last
    loss by, between any run and its twin, and at least a thousandth of the loss. NaN if all runs diverged.
    """
    last = {seed: final_loss(run) for seed, run in references.items()}
    finite = [loss for loss in last.values() if np.isfinite(loss)]
    if not finite:
        return float("nan")
    changes = [abs(final_loss(twin) - last[seed]) for seed, twin in twins.items()]
    rounding = max((change for change in changes if np.isfinite(change)), default=0.0)
    worst = max(finite)
    return worst + max(_ROUNDINGS * rounding, _LEAST_SLACK * abs(worst))


def reached(run: Sequence[RankRecord], target: float) -> Reached | None:
    """When the smoothed loss was first at ``target`` or below; None where it never was."""
    found = np.flatnonzero(smooth(losses(run)) <= target)
    if not len(found):
        return None
    row = int(found[0]) + 1
    seconds = max(float(rank.steps[row, Layout.SECONDS]) for rank in run)
    sent = float(np.mean([rank.steps[row, Layout.BYTES] for rank in run]))
    return Reached(int(run[0].steps[row, Layout.STEP]), seconds, sent)
