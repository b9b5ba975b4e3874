"""When a training reached a loss: after which step, time and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rueda.equivalence.record_files import Array, Layout, RankRecord

__all__ = ["Reached", "default_target", "final_loss", "losses", "reached", "smooth"]


@dataclass(frozen=True)
class Reached:
    """The step in which a loss was reached, seconds since the beginning, and bytes that a rank has sent by then."""

    step: int
    seconds: float
    bytes: float


def losses(run: Sequence[RankRecord]) -> Array:
    """(T,) of steps 1 to T: the mean over the ranks that tell any, each of which has its share of a batch."""
    found = np.stack([rank.steps[1:, Layout.LOSS] for rank in run])
    telling = found[~np.isnan(found).all(1)]
    return np.asarray((telling if len(telling) else found).mean(0))


def smooth(values: Array) -> Array:
    """The mean of the last twentieth of all steps up to each, or of as many as there are.

    Nothing but these counts, be others huge or not finite: sums are formed from the edges of blocks as long as the
    window, of which it has the end of one and the beginning of the next.
    """
    window = max(1, len(values) // 20)
    blocks = np.concatenate([values, np.zeros(-len(values) % window)]).reshape(-1, window)
    ends = np.cumsum(blocks[:, ::-1], 1)[:, ::-1]
    sums = np.cumsum(blocks, 1)
    sums[1:, :-1] += ends[:-1, 1:]
    return sums.reshape(-1)[: len(values)] / np.minimum(np.arange(1, len(values) + 1), window)


def final_loss(run: Sequence[RankRecord]) -> float:
    """The mean of the last twentieth of all steps; NaN where no loss was recorded."""
    found = losses(run)
    return float(smooth(found)[-1]) if len(found) else float("nan")


def default_target(references: Sequence[Sequence[RankRecord]]) -> float:
    """What the reference has come to with every seed: the largest of their last losses."""
    return max(final_loss(run) for run in references)


def reached(run: Sequence[RankRecord], target: float) -> Reached | None:
    """When the smoothed loss was first at ``target`` or below; None where it never was."""
    found = np.flatnonzero(smooth(losses(run)) <= target)
    if not len(found):
        return None
    row = int(found[0]) + 1
    seconds = max(float(rank.steps[row, Layout.SECONDS]) for rank in run)
    sent = float(np.mean([rank.steps[row, Layout.BYTES] for rank in run]))
    return Reached(int(run[0].steps[row, Layout.STEP]), seconds, sent)
