"""Whether asynchronous training is stable, from what it does itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch

from rueda.torch.strategies.delays import constant_limit, stability_limit

__all__ = ["Guard"]

_log = logging.getLogger("rueda")

_KEPT = 0.8  # of what was measured before, at each push
_SAFETY = 0.8  # of the limit is advised
_STEPS = 4_000  # of the limit's simulation, which is within some percent
_FEW = 5  # pushes do not tell yet whether ranks take turns,
_SOME = 20  # and what delays are like by chance counts as much as so many
_CHANCE = 0.25  # of the variance of delays by chance, which is μ(1 + μ): less means that they follow a rule
_CLOSE = 4.5  # of few counts, so many more are asked to be close to each other
_MOVED = 0.1  # of pushes that are staler or less stale than before: the limit is found anew
_RECENT = 400  # pushes to one owner that tell how stale pushes are now


class Guard:
    """Measures how much pushes overcorrect and how stale they are; advises smaller pushes if training is unstable.

    What a rank pushes, d(x), depends on the parameters x that it began with. Its *gain* is by how much d changes
    against x: for plain gradients η·L, L being the curvature along the way, for windows of steps what they come to. It
    is measured between one push and the next, g = -⟨d₂ - d₁, x₂ - x₁⟩/|x₂ - x₁|², over some pushes. With the delays
    that owners have counted the training is stable where g is below :func:`stability_limit`. Where the others push n
    times between two pushes of this rank, and their delays are clearly less than n, they come upon the same parameters
    after it, and add up: the limit is that of a constant n then. Delays that are spread as where ranks come in any
    order are taken for such, of which few are counted at first; others count as they are. Noise of batches alone makes
    g 1/P at most, which is below that, so the guard keeps silent there.

    That gain is the mean over the directions in which the parameters have moved. A ``window`` of H steps moves by
    1 - (1 - ηL)^H of the way to the minimum, which is all of it in the steepest directions, however little the others
    have come: for windows of several steps the gain is taken to be 1 at least. Until the first pushes have told how
    late they are, these are shrunk as if ranks took turns, which allows least; that is not counted as advice.

    ``gain`` and ``limit`` are what was found last; ``None`` before. ``advised`` counts the pushes that it advised to
    shrink.

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
        """``window``: local steps of a push, or ``"epoch"``."""
        self.gain: float | None = None
        self.limit: float | None = None
        self.advised = 0
        self._ranks = ranks
        self._least_gain = 0.0 if window == 1 else 1.0
        self._pushes = 0
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None
        self._change = self._distance = 0.0
        self._counted: dict[int, int] = {}  # when the recent pushes began
        self._counted_before = 0.0
        self._knows_delays = False
        self._delays: dict[int, float] = {}  # of which the limit is
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

        ``begun_with``: the parameters that were pulled before ``delta`` was found. ``staleness``: how many pushes so
        far met which, as :meth:`rueda.server.Table.staleness` counts. ``counted``: how many pushes of all ranks were in
        ``begun_with``, on average over its owners.
        """
        if self._last is not None:
            moved = begun_with - self._last[0]
            changed = delta - self._last[1]
            self._change = _KEPT * self._change - float(torch.dot(changed, moved))
            self._distance = _KEPT * self._distance + float(torch.dot(moved, moved))
        self._last = begun_with.clone(), delta.clone()
        self._pushes += 1
        if self._pushes == 2:
            # The first push of each rank met none, or those of ranks that began earlier: that does not come again.
            self._counted, self._counted_before = dict(staleness), counted
        self._find_limit(staleness, counted)
        if self._distance > 0:
            self.gain = max(self._change / self._distance, self._least_gain)
        if self._least_gain > 0 and not self._knows_delays:
            allowed = _SAFETY * constant_limit(self._ranks - 1)
            return min(1.0, allowed / ((self.gain or self._least_gain) * factor))
        if self.gain is None or self.limit is None:
            return 1.0
        pushed = self.gain * factor
        if pushed <= self.limit:
            return 1.0
        self.advised += 1
        if not self._has_warned:
            self._has_warned = True
            mean = sum(delay * share for delay, share in self._delays.items())
            _log.warning(
                "pushes over-correct: their gain is %.3g, and with %d rank(s), whose pushes come %.3g others late, it "
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
        )  # few may be close by chance
        if spread > by_rule:
            # So few pushes have a delay here and there, which allows less than delays of all sizes do.
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
    """The delays of all ranks' pushes, as far as a rank whose pushes are ``share`` of them can know.

    They are what its own are, unless it is much slower than the others: then its own pushes tell of few. While a rank
    works on a push, each of the others' delays grows by what is pushed; so over all pushes the mean delay is the number
    of the other ranks, however quick each is. The others' are taken to be spread as by chance, with the mean that
    leaves.
    """
    if share > 0.5 / ranks:
        return dict(delays)
    rest = max(0.0, (ranks - 1 - share * mean) / (1 - share))
    return _mixed(delays, _spread_by_chance(rest), 1 - share)


def _mixed(
    delays: Mapping[int, float], others: Mapping[int, float], share: float
) -> dict[int, float]:
    """``others`` for that share, ``delays`` for the rest."""
    return {
        each: (1 - share) * delays.get(each, 0.0) + share * others.get(each, 0.0)
        for each in {**delays, **others}
    }


def _spread_by_chance(mean: float) -> dict[int, float]:
    """Delays, from 0 on, each as often as by chance, with this mean."""
    again = mean / (1 + mean)
    return {delay: (1 - again) * again**delay for delay in range(int(8 * (1 + mean)) + 1)}
