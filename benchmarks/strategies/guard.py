"""Whether the guard of asynchronous training is right: its limits, on quadratics, and its silence.

    python benchmarks/strategies/guard.py [--runs N]

The first table has, for constant delays of 0 to 20 and for delays that are drawn anew in each step, the largest gain
at which x(t+1) = x(t) - a·x(t - τ) did not grow in a simulation of its own, beside what stability_limit() predicts
from how often each delay occurs. The second has noisy quadratics of 20 dimensions, curvatures from 0.05 to 1, on which
workers pull and push as they come, in an order drawn by chance: in how many runs the guard advised anything, where
steps are half of those with which the runs begin to grow, and where they are half as large again. In the last row one
worker of four does nine pushes of ten.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from rueda.torch.strategies import Guard, stability_limit

RANDOM: dict[str, dict[int, float]] = {
    "0 or 6, each half of the time": {0: 1, 6: 1},
    "0 to 3, each as often": dict.fromkeys(range(4), 1.0),
    "2 to 4, each as often": dict.fromkeys(range(2, 5), 1.0),
    "0 to 10, each as often": dict.fromkeys(range(11), 1.0),
    "0 to 20, each as often": dict.fromkeys(range(21), 1.0),
    "each half as often as the one before": {k: 0.5**k for k in range(21)},
    "5 to 15, the middle most often": {k: float(6 - abs(k - 10)) for k in range(5, 16)},
}


def grows(gain: float, delays: Sequence[int]) -> bool:
    """Whether one trajectory has grown at its end, in plain numbers."""
    reach = max(delays) + 1
    past = [1.0] * reach
    logarithm = 0.0
    for delay in delays:
        past.append(past[-1] - gain * past[-1 - delay])
        if len(past) > 50 * reach:
            size = max(abs(each) for each in past[-reach:]) or 1e-300
            past = [each / size for each in past[-reach:]]
            logarithm += math.log(size)
    return logarithm + math.log(max(abs(each) for each in past[-reach:]) or 1e-300) > 0


def measured_limit(delays: Mapping[int, float], steps: int = 40_000, seed: int = 7) -> float:
    """Of the simulation, halved down to 1 in 500."""
    weights = np.array(list(delays.values()), float)
    drawn = np.random.default_rng(seed).choice(list(delays), steps, p=weights / weights.sum())
    low, high = 0.0, 2.2
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if grows(middle, drawn.tolist()) else (middle, high)
    return low


def train(
    workers: int,
    rate: float,
    seed: int,
    pushes: int = 400,
    noise: float = 0.1,
    shares: Sequence[float] = (),
) -> tuple[float, int]:
    """Asynchronous descent on a quadratic: its loss at the end, and how often the guard of any worker advised.

    ``shares``: how much of the pushes each worker does; by default all the same.
    """
    weights = torch.tensor(shares or [1.0] * workers)
    draw = torch.Generator().manual_seed(seed)
    curvatures = torch.linspace(0.05, 1, 20)
    centre = torch.randn(20, generator=draw)
    pulled = [centre.clone() for _ in range(workers)]
    seen = [0] * workers
    counts: list[Counter[int]] = [Counter() for _ in range(workers)]
    guards = [Guard(workers) for _ in range(workers)]
    for push in range(pushes):
        who = int(torch.multinomial(weights, 1, generator=draw))
        x = pulled[who]
        delta = -rate * (curvatures * x + noise * torch.randn(20, generator=draw))
        guards[who].advise(x, delta, counts[who], 1.0, float(seen[who]))
        counts[who][push - seen[who]] += workers  # each of as many owners counts it
        centre = centre + delta
        pulled[who], seen[who] = centre.clone(), push + 1
    return float((curvatures * centre**2).sum() / 2), sum(guard.advised for guard in guards)


def growing_rate(workers: int, seeds: Sequence[int], shares: Sequence[float] = ()) -> float:
    """Where most of the runs without noise grow."""
    low, high = 0.0, 3.0
    for _ in range(8):
        middle = (low + high) / 2
        grown = sum(
            not train(workers, middle, seed, noise=0.0, shares=shares)[0] < 10 for seed in seeds
        )
        low, high = (low, middle) if 2 * grown > len(seeds) else (middle, high)
    return low


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40, help="of each kind, in the second table")
    options = parser.parse_args()
    logging.getLogger("rueda").setLevel(logging.ERROR)  # which has the guard's warnings
    print("| delays | measured limit | predicted | ratio |")
    print("| --- | ---: | ---: | ---: |")
    kinds = {str(delay): {delay: 1.0} for delay in (0, 1, 2, 3, 5, 8, 12, 16, 20)} | RANDOM
    for name, delays in kinds.items():
        measured, predicted = measured_limit(delays), stability_limit(delays)
        ratio = predicted / measured
        print(f"| {name} | {measured:.4f} | {predicted:.4f} | {ratio:.3f} |", flush=True)
    print("\n| workers | runs grow from | spoke at half of it | spoke at 1.5 times |")
    print("| ---: | ---: | ---: | ---: |")
    uneven = (0.9, 0.03, 0.03, 0.04)
    for workers, shares in ((1, ()), (2, ()), (4, ()), (8, ()), (4, uneven)):
        rate = growing_rate(workers, range(9), shares)
        spoke = [
            sum(
                train(workers, factor * rate, seed, shares=shares)[1] > 0
                for seed in range(options.runs)
            )
            for factor in (0.5, 1.5)
        ]
        told = " | ".join(f"{each} of {options.runs}" for each in spoke)
        name = f"{workers}, one of them quick" if shares else str(workers)
        print(f"| {name} | {rate:.3f} | {told} |", flush=True)


if __name__ == "__main__":
    main()
