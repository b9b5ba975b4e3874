"""Detects from an asynchronous training itself whether it is stable."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch

from rueda.torch.strategies.delays import constant_limit, stability_limit

__all__ = ["Guard"]

_log = logging.getLogger("rueda")

_KEPT = 0.8  # weight that earlier measurements keep at each push
_SAFETY = 0.8  # fraction of the limit that is advised
_STEPS = 4_000  # of the limit's simulation, accurate to some percent
_FEW = 5  # fewer pushes than this do not show how ranks are delayed
_SOME = 20  # pushes that the assumed random delays are worth in the estimate
_CHANCE = 0.25  # fraction of the variance of random delays, μ(1 + μ), below which a rule is assumed
_CLOSE = 4.5  # lowers that fraction while few pushes are counted
_MOVED = 0.1  # fraction of pushes whose staleness must change before the limit is computed again
_RECENT = 400  # pushes to one owner after which counts restart, to follow the current staleness


class Guard:
    """Measures how much pushes overcorrect and how stale they are; advises smaller pushes if training is unstable.

    A rank's push d(x) depends on the parameters x that it started from. The *gain* is how much d changes against x:
    η·L for plain gradients, L being the curvature along the path, and the combined effect for windows of steps. It is
    measured between consecutive pushes, g = -⟨d₂ - d₁, x₂ - x₁⟩/|x₂ - x₁|², with decaying weights. The training is
    stable if g is below :func:`stability_limit` for the delays that the owners count. If other ranks push n times
    between two pushes of this rank, but its delays are clearly below n, they start from the same parameters after its
    push, and their pushes add up: the limit is then that of a constant delay n. Delays that spread as if ranks came in
    random order are blended with that distribution, since few are counted at first; others are used as counted. Batch
    noise alone makes g at most 1/P, which is below the limit, so the guard stays silent.

    The gain is a mean over the directions in which the parameters moved. A ``window`` of H steps covers
    1 - (1 - ηL)^H of the way to the minimum: all of it in the steepest directions, however little in others. So the
    gain of windows of several steps is at least 1. Until enough pushes show the delays, these pushes are shrunk as if
    ranks took turns, which is the strictest limit; this does not count as advice.

    ``gain`` and ``limit`` are the latest values, ``None`` before the first. ``advised`` counts the pushes that the
    guard advised to shrink.

    Example::

        >>> from rueda.torch.strategies.guard import Guard
        >>> guard, x = Guard(ranks=1), torch.ones(3)
        >>> for _ in range(3):  # steps of 2.5 times the inverse curvature: each overshoots
        ...     factor = guard.advise(x, -2.5 * x, {0: 9}, 1.0, 9)
        ...     x = x - 2.5 * x
        >>> guard.gain, round(factor, 2)
        (2.5, 0.64)
    """

    def __init__(self, ranks: int, window: int | str = 1) -> None:
        """``window``: local steps per push, or ``"epoch"``."""
        self.gain: float | None = None
        self.limit: float | None = None
        self.advised = 0
        self._ranks = ranks
        self._least_gain = 0.0 if window == 1 else 1.0
        self._pushes = 0
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None
        self._change = self._distance = 0.0
        self._counted: dict[int, int] = {}  # the staleness counts when the recent pushes began
        self._counted_before = 0.0
        self._knows_delays = False
        self._delays: dict[int, float] = {}  # from which the limit was computed
        self._has_warned = False

    @torch.no_grad()
    def advise(
        self,
        begun_with: torch.Tensor,
        delta: torch.Tensor,
        staleness: Mapping[int, int],
        factor: float,
        counted: float,
    ) -> float:
        """What to multiply ``factor`` by, at most 1, when ``factor`` times ``delta`` is pushed.

        ``begun_with``: the parameters pulled before ``delta`` was computed. ``staleness``: how many pushes so far had
        which staleness, see :meth:`rueda.server.Table.staleness`. ``counted``: the number of pushes, of all ranks, in
        ``begun_with``, averaged over its owners.
        """
        if self._last is not None:
            moved = begun_with - self._last[0]
            changed = delta - self._last[1]
            self._change = _KEPT * self._change - float(torch.dot(changed, moved))
            self._distance = _KEPT * self._distance + float(torch.dot(moved, moved))
        self._last = begun_with.clone(), delta.clone()
        self._pushes += 1
        if self._pushes == 2:
            # Exclude each rank's first push, whose staleness depends on the start: 0, or pushes of earlier starters.
            self._counted, self._counted_before = dict(staleness), counted
        self._find_limit(staleness, counted)
        if self._distance > 0:
            self.gain = max(self._change / self._distance, self._least_gain)
        if self._least_gain > 0 and not self._knows_delays:
            allowed = _SAFETY * constant_limit(self._ranks - 1)
            return min(1.0, allowed / ((self.gain or self._least_gain) * factor))
        if self.gain is None or self.limit is None or math.isnan(self.gain):  # NaN: has diverged
            return 1.0
        pushed = self.gain * factor
        if pushed <= self.limit:
            return 1.0
        self.advised += 1
        if not self._has_warned:
            self._has_warned = True
            mean = sum(delay * share for delay, share in self._delays.items())
            _log.warning(
                "pushes over-correct: their gain is %.3g, and with %d rank(s), whose pushes are %.3g pushes late, it "
                "may be %.3g at most: a lower learning rate, shorter windows or guard='scale' help",
                pushed,
                self._ranks,
                mean if self._delays else self._ranks - 1,
                self.limit,
            )
        return _SAFETY * self.limit / pushed

    def _find_limit(self, staleness: Mapping[int, int], counted: float) -> None:
        recent = {delay: count - self._counted.get(delay, 0) for delay, count in staleness.items()}
        total = sum(recent.values())
        if self.limit is None:
            self.limit = stability_limit(_spread_by_chance(self._ranks - 1), steps=_STEPS)
        if total < _FEW * self._ranks:  # each push is counted by every rank
            return
        self._knows_delays = True
        delays = {delay: count / total for delay, count in recent.items() if count > 0}
        mean = sum(delay * share for delay, share in delays.items())
        spread = sum((delay - mean) ** 2 * share for delay, share in delays.items())
        own = total / self._ranks  # pushes of this rank
        others = max(0.0, (counted - self._counted_before) / own - 1)
        take_turns = mean + 2 * math.sqrt(spread / own) < 0.9 * others
        by_rule = (
            _CHANCE * (1 - _CLOSE / (own + 1)) * mean * (1 + mean)
        )  # few counts may be close by chance
        if spread > by_rule:
            # Few pushes give gaps between delays, which have a lower limit than delays of all sizes.
            delays = _mixed(delays, _spread_by_chance(mean), _SOME / (own + _SOME))
        known = set(delays) | set(self._delays)
        apart = sum(abs(delays.get(each, 0) - self._delays.get(each, 0)) for each in known) / 2
        if apart > _MOVED:
            self._delays = delays
            self.limit = (
                constant_limit(others)
                if take_turns
                else stability_limit(
                    _of_all(delays, mean, 1 / (1 + others), self._ranks), steps=_STEPS
                )
            )
        if total > _RECENT * self._ranks:
            self._counted = dict(staleness)
            self._counted_before = counted


def _of_all(delays: Mapping[int, float], mean: float, share: float, ranks: int) -> dict[int, float]:
    """Estimates the delays of all ranks' pushes from those of a rank that makes ``share`` of the pushes.

    They equal its own, unless it is much slower than the others, so that it makes few of the pushes. Every push adds 1
    to the delay of each other rank's current push, so the mean delay over all pushes is the number of other ranks,
    whatever their speeds. The others' delays are assumed to be random, with the mean that this leaves.
    """
    if share > 0.5 / ranks:
        return dict(delays)
    rest = max(0.0, (ranks - 1 - share * mean) / (1 - share))
    return _mixed(delays, _spread_by_chance(rest), 1 - share)


def _mixed(
    delays: Mapping[int, float], others: Mapping[int, float], share: float
) -> dict[int, float]:
    """A mixture of both: ``others`` with weight ``share``, ``delays`` with the rest."""
    return {
        each: (1 - share) * delays.get(each, 0.0) + share * others.get(each, 0.0)
        for each in {**delays, **others}
    }


def _spread_by_chance(mean: float) -> dict[int, float]:
    """The geometric distribution of delays from 0 on, with this mean."""
    again = mean / (1 + mean)
    return {delay: (1 - again) * again**delay for delay in range(int(8 * (1 + mean)) + 1)}
