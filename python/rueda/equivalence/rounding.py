"""Whether rounding explains how far a run is from the reference.

Sums that are added up in another order differ in their last bits, and training makes that grow, at a rate that only
the training itself knows. So it is measured: each seed's reference has a twin whose state is moved, at random, by a
unit in the last place of each element, at the beginning and after each step. The largest distance of any twin so far
is the *envelope*, by step and tensor. (TTrace, arXiv 2506.09280, takes its tolerances from perturbations likewise.) It
is never taken to be less than what a tensor's own type can tell apart.

For each seed there is one number, the largest quotient of distance and envelope over all steps and tensors, as a
logarithm to base 10. Its mean over seeds has a confidence interval by Student's t. Rounding explains the distance
where the whole interval is below that of ``MARGIN``, and does not where the whole interval is above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from rueda.equivalence.looks import further_look
from rueda.equivalence.quality import MAX_SEEDS
from rueda.equivalence.record_files import Array, RankRecord

__all__ = [
    "MARGIN",
    "Divergence",
    "RoundingFinding",
    "divergence_of",
    "envelope",
    "judge_rounding",
    "quotients",
    "saturated",
    "testable",
]

# A distance of ten envelopes: one step of another kind of rounding is some units in the last place, faults are
# thousands of envelopes away (docs/equivalence.md has the figures).
MARGIN = 10.0
# Beyond these a quotient says no more: well within rounding, and far beyond it.
_MIN_QUOTIENT, _MAX_QUOTIENT = 0.1, 1e6
# In log10: sketches tell a distance to within 13%, so no spread over seeds is taken to be less.
_MIN_SPREAD = 0.06
# From an envelope of this part of the distance of two seeds on, a state tells nothing any more.
_SATURATED = 0.1
# A tensor whose envelope was once below this part of how far seeds have taken it was moved by more than rounding.
_CLEAR = 0.01
# Of all tensors that training moves, by the square root of their elements: what rounding moves as a seed does.
_MUCH = 0.25


@dataclass(frozen=True)
class RoundingFinding:
    """What can be said at the confidence asked for.

    - ``explains``: True, False, or None where these seeds do not tell.
    - ``factor``: by how many envelopes the state is off at most, as a geometric mean over seeds, with ``low`` and
      ``high`` around it.
    - ``seeds_needed``: how many would tell, as far as these show, at a further look; None where that cannot be said.
    """

    explains: bool | None
    factor: float
    low: float
    high: float
    seeds_needed: int | None = None


@dataclass(frozen=True)
class Divergence:
    """Where a run leaves what rounding explains: after which step, in which tensor, on which rank of it."""

    step: int
    tensor: str
    rank: int
    times: float  # as many envelopes
    seeds: int  # of how many it holds that they diverge at all
    relative: float  # distance over the tensor's norm


def envelope(twins: Array, references: Sequence[RankRecord]) -> Array:
    """(R+1, N) from (S, R+1, N), the distances of each seed's twin from its reference."""
    measured = np.maximum.accumulate(twins.max(0), axis=0)
    layout = references[0].layout
    numels = np.array(layout.numels, dtype=float)
    eps = np.array(layout.eps)
    norms = np.stack([reference.norms for reference in references]).max(0)
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = eps > 0
        typical = np.sqrt(
            (norms[:, rounded] ** 2).sum(1, keepdims=True) / max(1.0, numels[rounded].sum())
        )
        floor = eps * np.maximum(norms, np.sqrt(numels) * typical)
    floor = np.where(np.isfinite(floor), floor, 0.0)
    return np.maximum(measured, floor)


def quotients(apart: Array, around: Array) -> Array:
    """Distances in envelopes; 0 where bits are the same, infinite where there is no envelope, as for whole numbers.

    Where rounding itself leads to numbers that are not finite, no distance is more than its effect.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(apart == 0, 0.0, np.where(around == 0, np.inf, apart / around))
    return np.where(np.isinf(apart) & np.isinf(around), 1.0, found)


def testable(around: Array, seeds_apart: Array) -> np.ndarray:
    """(R+1,): in which states rounding is still far from explaining anything.

    ``seeds_apart``: (R+1, N), how far the references of two seeds are from each other.
    """
    whole = np.sqrt((around**2).sum(1))
    return np.asarray(whole < _SATURATED * np.sqrt((seeds_apart**2).sum(1)))


def saturated(around: Array, ways_apart: Array, numels: Sequence[int]) -> np.ndarray:
    """(R+1,): in which states rounding moves much of the model nearly as far as another seed does, and once did not.

    That is asked by tensor, as the distance of whole states may lie in tensors that hardly move, such as the rows of
    an embedding that no batch has: beside these, rounding would never come to anything. ``ways_apart``: (R+1, N), how
    far two seeds have taken each tensor from where it began, of which the largest so far counts. Tensors that nothing
    but rounding has ever moved, such as a bias before a normalization, tell nothing of the training; and what follows
    such a bias, as the running mean behind it, is no more than a small part of a model.
    """
    furthest = np.maximum.accumulate(ways_apart, axis=0)
    was_clear = np.logical_or.accumulate(around < _CLEAR * furthest, axis=0)
    is_lost = was_clear & (around >= _SATURATED * furthest)
    sizes = np.sqrt(np.array(numels, dtype=float))  # as norms go
    return np.asarray(is_lost @ sizes > _MUCH * ((furthest > 0) @ sizes))


def _interval(values: Array, alpha: float) -> tuple[float, float]:
    spread = max(float(values.std(ddof=1)), _MIN_SPREAD) / np.sqrt(len(values))
    half = float(special.stdtrit(len(values) - 1, 1 - alpha / 2) * spread)
    return float(values.mean()) - half, float(values.mean()) + half


def _tells(low: float, high: float) -> bool:
    return high < math.log10(MARGIN) or low > math.log10(MARGIN)


def _seeds_needed(values: Array, alpha: float) -> int | None:
    mean, spread = float(values.mean()), max(float(values.std(ddof=1)), _MIN_SPREAD)
    counts = np.arange(len(values) + 1, MAX_SEEDS + 1)
    halves = special.stdtrit(counts - 1, 1 - further_look(alpha) / 2) * spread / np.sqrt(counts)
    margin = math.log10(MARGIN)
    decided = np.flatnonzero((mean + halves < margin) | (mean - halves > margin))
    return int(counts[decided[0]]) if len(decided) else None


def judge_rounding(largest: Sequence[float], alpha: float) -> RoundingFinding:
    """``largest``: of each seed, the largest quotient; ``alpha``: the probability of a wrong answer."""
    clipped = np.log10(np.clip(np.asarray(largest, dtype=float), _MIN_QUOTIENT, _MAX_QUOTIENT))
    if len(clipped) < 2:
        factor = float(10 ** clipped.mean())
        return RoundingFinding(None, factor, 0.0, np.inf, 2)
    low, high = _interval(clipped, alpha)
    factor = float(10 ** clipped.mean())
    bounds = float(10**low), float(10 ** min(high, 300.0))
    if not _tells(low, high):
        return RoundingFinding(None, factor, *bounds, _seeds_needed(clipped, alpha))
    return RoundingFinding(high < math.log10(MARGIN), factor, *bounds)


def divergence_of(
    of_seeds: Sequence[Array],
    ranks: Sequence[np.ndarray],
    apart: Sequence[Array],
    reference: RankRecord,
) -> Divergence | None:
    """The first of any seed: ``of_seeds`` are (R+1, N) quotients, ``ranks`` which rank each comes from.

    Of the tensors that leave in that step it is the one that is furthest out, in the mean over the seeds that do.
    """
    beyond = [np.flatnonzero((found > MARGIN).any(1)) for found in of_seeds]
    diverged = [number for number, rows in enumerate(beyond) if len(rows)]
    if not diverged:
        return None
    row = min(int(beyond[number][0]) for number in diverged)
    here = [number for number in diverged if int(beyond[number][0]) == row]
    logs = np.log10(np.clip([of_seeds[n][row] for n in here], 1e-3, 1e12)).mean(0)
    tensor = int(logs.argmax())
    first = max(here, key=lambda number: of_seeds[number][row, tensor])
    norm = float(reference.norms[row, tensor])
    distance = float(apart[first][row, tensor])
    return Divergence(
        int(reference.state_steps[row]),
        reference.layout.names[tensor],
        int(ranks[first][row, tensor]),
        float(10 ** logs[tensor]),
        len(diverged),
        distance / norm if norm else np.inf,
    )
