"""How large a delayed step may be before the training diverges."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["constant_limit", "stability_limit"]

_STEPS = 20_000  # steps of a simulation: limits are within 1 to 2 percent of longer ones
_TRIED = 48  # step sizes tried at a time; each of two rounds narrows the interval by this factor


def constant_limit(delay: float) -> float:
    """:func:`stability_limit` of one delay, which need not be an integer: 2 sin(π/(4τ + 2))."""
    return 2 * math.sin(math.pi / (4 * delay + 2))


def stability_limit(delays: Mapping[int, float], seed: int = 0, steps: int = _STEPS) -> float:
    """The largest gain a for which x(t+1) = x(t) - a·x(t - τ) does not grow, with a new random τ in each step.

    a is the step size times the curvature: η·L. ``delays``: for each τ ≥ 0, how often it occurs, in any unit. For one
    τ the limit is 2 sin(π/(4τ + 2)) (Levin and May, "A note on difference-delay equations", Theoretical Population
    Biology 9, 1976, equation 9). For several, the growth of the product of random matrices (its Lyapunov exponent) is
    simulated for ``steps`` steps, with random numbers from ``seed``. The mean of τ does not determine the limit: random
    delays of 0 or 6 allow 1.4, a constant 3 allows 0.45. Raises ``ValueError`` without delays or for negative ones.

    Example::

        >>> from rueda.torch.strategies.delays import stability_limit
        >>> round(stability_limit({3: 1}), 3)
        0.445
    """
    found = {int(delay): weight for delay, weight in delays.items() if weight > 0}
    if not found or min(found) < 0:
        raise ValueError(f"there are no delays in {dict(delays)}")
    if len(found) == 1:
        return constant_limit(next(iter(found)))
    values = np.array(sorted(found))
    weights = np.array([found[value] for value in sorted(found)], float)
    drawn = np.random.default_rng(seed).choice(values, steps, p=weights / weights.sum())
    low, high = 0.0, 2.0  # the limit is 2 without a delay, and less with one
    for _ in range(2):
        gains = np.linspace(low, high, _TRIED + 1)[1:]
        growing = np.nonzero(_growth(gains, drawn) > 0)[0]
        first = int(growing[0]) if growing.size else _TRIED - 1
        low, high = (float(gains[first - 1]) if first else low), float(gains[first])
    return (low + high) / 2


def _growth(
    gains: npt.NDArray[np.float64], delays: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The logarithm of the factor by which x grows over all steps."""
    length = int(delays.max()) + 1
    past = np.ones((length, gains.size))  # x of step t in row t modulo length
    grown = np.zeros(gains.size)
    for step, delay in enumerate(delays):
        late = past[(step - 1 - delay) % length]
        past[step % length] = past[(step - 1) % length] - gains * late
        if step % 50 == 49:
            size = np.abs(past).max(axis=0)
            size[size == 0] = 1e-300
            past /= size
            grown += np.log(size)
    return grown
