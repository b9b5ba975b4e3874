"""Whether two ways to train are as good, from a few seeds of each.

For each seed the gap is the candidate's number minus the reference's, turned so that more is better; both begin alike,
so the gaps are paired. Their mean has a confidence interval by Student's t, which takes gaps to be normal: without
that five seeds cannot come to 95%, as the smallest p of a two-sided test over their 2^5 signs is 2/32.

*The same* means that the mean gap is within a margin: two one-sided tests (Schuirmann, "A comparison of the two
one-sided tests procedure and the power approach for assessing the equivalence of average bioavailability", 1987),
which is the whole interval lying within the margin on both sides. Not finding a gap is not enough. The margin is what
one run more or less of the reference does: by how much two of its seeds differ with a probability of 95%, 1.96·√2
standard deviations (the repeatability limit of ISO 5725-6:1994). As the standard deviation is estimated from the same
few seeds, its lower confidence bound is taken (chi-squared): few seeds make a narrow margin and not a bold verdict. A
margin that the user gives is used as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from rueda.equivalence.looks import further_look
from rueda.equivalence.record_files import Array

__all__ = ["MAX_SEEDS", "QualityFinding", "judge_quality", "seeds_text", "spread_margin"]

Counts = npt.NDArray[np.int64]
MAX_SEEDS = 1000
_REPEATABILITY = 1.96 * np.sqrt(2)


@dataclass(frozen=True)
class QualityFinding:
    """What can be said at the confidence asked for.

    - ``verdict``: "same", "worse", "better" or "undecided".
    - ``gap``: in the mean over seeds, with ``low`` and ``high`` around it; more is better.
    - ``margin``: what counts as the same.
    - ``spread``: the standard deviation of the reference over seeds.
    - ``why``: for "undecided", a sentence.
    - ``seeds_needed``: how many would tell, as far as these show, with what a further look at them may be wrong by
      (`looks.py`); None where that cannot be said.
    - ``lost``: with how many seeds the candidate's number is not finite though the reference's is.
    """

    verdict: str
    gap: float
    low: float
    high: float
    margin: float
    spread: float
    why: str = ""
    seeds_needed: int | None = None
    lost: int = 0


def spread_margin(spread: float, seeds: int | Counts, alpha: float) -> Array:
    """By how much two seeds of the reference differ with 95%, not more than that with confidence 1 - ``alpha``."""
    counts = np.asarray(seeds)
    # scipy.stats has it as chi2.ppf(), and takes seconds to import.
    quantile = 2 * special.gammaincinv((counts - 1) / 2, 1 - alpha)
    lower = spread * np.sqrt((counts - 1) / quantile)
    return np.asarray(_REPEATABILITY * lower)


def _verdict(gap: float, half: float, margin: float) -> str:
    if abs(gap) + half < margin:
        return "same"
    if abs(gap) > half:
        return "better" if gap > 0 else "worse"
    return "undecided"


def seeds_text(count: int) -> str:
    """As in: 1 seed; 5 seeds."""
    return "1 seed" if count == 1 else f"{count} seeds"


def _half(spread: float, seeds: int | Counts, alpha: float) -> Array:
    counts = np.asarray(seeds)
    return np.asarray(special.stdtrit(counts - 1, 1 - alpha / 2) * spread / np.sqrt(counts))


def judge_quality(
    candidate: Sequence[float],
    reference: Sequence[float],
    alpha: float,
    *,
    higher_is_better: bool,
    margin: float | None = None,
) -> QualityFinding:
    """The numbers of both by seed, and ``alpha``, the probability of a wrong answer.

    That is spent on the interval, and half of it on the margin's where it is taken from the seeds.
    """
    sign = 1.0 if higher_is_better else -1.0
    ours, theirs = np.asarray(candidate, dtype=float), np.asarray(reference, dtype=float)
    seeds = len(theirs)
    nan = float("nan")
    is_lost, has_lost = ~np.isfinite(ours), ~np.isfinite(theirs)
    with np.errstate(invalid="ignore"):
        spread = float(theirs.std(ddof=1)) if seeds > 1 else nan
    lost, left = int((is_lost & ~has_lost).sum()), int((~has_lost).sum())
    if lost:
        # No mean stands for that, but its worst is known: where all are lost nothing is left to be decided.
        verdict = "worse" if lost == left else "undecided"
        why = f"not a finite number with {lost} of {seeds_text(seeds)}"
        found = -np.inf, -np.inf, nan, margin or 0.0, spread
        return QualityFinding(verdict, *found, why, lost=lost)
    if has_lost.any():
        why = f"the reference has no finite number with {seeds - left} of {seeds_text(seeds)}"
        return QualityFinding("undecided", nan, nan, nan, margin or 0.0, spread, why)
    if seeds < 2:
        gap = float(sign * (ours - theirs).mean()) if seeds else nan
        return QualityFinding(
            "undecided", gap, -np.inf, np.inf, margin or 0.0, nan, "one seed has no spread", 2
        )
    of_interval, of_margin = (alpha, 0.0) if margin is not None else (alpha / 2, alpha / 2)

    limit = margin if margin is not None else float(spread_margin(spread, seeds, of_margin))
    gaps = sign * (ours - theirs)
    gap, apart = float(gaps.mean()), float(gaps.std(ddof=1))
    half = float(_half(apart, seeds, of_interval))
    found = gap, gap - half, gap + half, limit, spread
    # What rounding makes of equal gaps is no spread.
    if apart <= 8 * np.finfo(float).eps * max(np.abs(ours).max(), np.abs(theirs).max()):
        why = "the gap is the same in all seeds, so its spread is unknown: give a finer number"
        return QualityFinding("undecided", *found, why)
    verdict = _verdict(gap, half, limit)
    if verdict != "undecided":
        return QualityFinding(verdict, *found)
    counts = np.arange(seeds + 1, MAX_SEEDS + 1)
    halves = _half(apart, counts, further_look(of_interval))
    limits = (
        margin if margin is not None else spread_margin(spread, counts, further_look(of_margin))
    )
    decided = np.flatnonzero((abs(gap) + halves < limits) | (abs(gap) > halves))
    needed = int(counts[decided[0]]) if len(decided) else None
    return QualityFinding("undecided", *found, "the interval is too wide", needed)
