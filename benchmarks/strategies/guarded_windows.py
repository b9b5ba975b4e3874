"""What the guard makes of `downpour` when ranks take turns, and when they come by chance: the digits, in one process.

    python benchmarks/strategies/guarded_windows.py [--seeds N]

Who pushes when decides whether long windows of late pushes fall apart, and on a real machine that is the system's
choice. Here it is chosen: four workers push in turns, or in an order drawn by chance. Otherwise as `measure.py
--served` on 4 ranks: the network is 64-64-10 with ReLU, SGD with a learning rate of 0.1, 20 epochs of 1,408 images in
batches of 16. The table has the mean accuracy on 360 test images with its standard error and the lowest, and by what
a push was multiplied on average.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from measure import batches, load, with_lowest
from rueda.torch.strategies import Guard
from torch import nn

WORKERS = 4
BATCH = 16
EPOCHS = 20
STEPS = 22  # of a worker in an epoch


def network() -> nn.Sequential:
    """With new parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Worker:
    """A rank as far as `downpour` goes."""

    def __init__(self, centre: torch.Tensor, window: int, is_guarded: bool) -> None:
        self.model = network()
        self.delays: Counter[int] = Counter()
        self.done = 0
        self._window = window
        self._guard = Guard(WORKERS, window) if is_guarded else None
        self.pull(centre, 0)

    def pull(self, centre: torch.Tensor, pushes: int) -> None:
        """Goes on from the centre, to which so many pushes have come."""
        self._pulled, self._seen = centre.clone(), pushes
        nn.utils.vector_to_parameters(centre.clone(), self.model.parameters())

    def work(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One local step."""
        self.model.zero_grad()
        F.cross_entropy(self.model(images), labels).backward()
        with torch.no_grad():
            for each in self.model.parameters():
                each -= 0.1 * each.grad
        self.done += 1

    def push(self, centre: torch.Tensor, pushes: int) -> float:
        """Adds to the centre, and tells by what that was multiplied."""
        moved = nn.utils.parameters_to_vector(self.model.parameters()).detach() - self._pulled
        factor = 1.0
        if self._guard is not None:
            factor = self._guard.advise(self._pulled, moved, self.delays, 1.0, float(self._seen))
        self.delays[pushes - self._seen] += WORKERS  # each of as many owners counts it
        centre += factor * moved
        return factor


class Outcome(NamedTuple):
    """Of one training."""

    accuracy: float  # percent
    factor: float


def train(window: int, is_guarded: bool, in_turns: bool, seed: int) -> Outcome:
    """All workers, until each has done its steps."""
    torch.manual_seed(seed)
    x, y, test_x, test_y = load()
    model = network()
    centre = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    workers = [Worker(centre, window, is_guarded) for _ in range(WORKERS)]
    shuffle, draw = np.random.default_rng(seed), np.random.default_rng(seed + 1000)
    chosen = np.concatenate(
        [batches(shuffle, STEPS, WORKERS, BATCH, fixed=False) for _ in range(EPOCHS)]
    )
    factors = []
    while busy := [rank for rank in range(WORKERS) if workers[rank].done < len(chosen)]:
        rank = busy[draw.integers(len(busy))]
        if in_turns:
            rank = min(busy, key=lambda each: workers[each].done)
        worker = workers[rank]
        for images in chosen[worker.done : worker.done + window, rank]:
            worker.work(x[images], y[images])
        factors.append(worker.push(centre, len(factors)))
        worker.pull(centre, len(factors))
    nn.utils.vector_to_parameters(centre, model.parameters())
    right = (model(test_x).argmax(1) == test_y).float().mean().item()
    return Outcome(100 * right, float(np.mean(factors)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("rueda").setLevel(logging.ERROR)  # which has the guard's warnings
    print("| run | who pushes | accuracy, % | lowest | multiplied by |")
    print("| --- | --- | ---: | ---: | ---: |")
    for order in ("in turns", "by chance"):
        for window in (1, 5, 20):
            for is_guarded in (False, True):
                name = f"downpour:{window}" + (",guard=scale" if is_guarded else "")
                of_seeds = [
                    train(window, is_guarded, order == "in turns", seed)
                    for seed in range(options.seeds)
                ]
                right = with_lowest([each.accuracy for each in of_seeds])
                factor = np.mean([each.factor for each in of_seeds])
                print(f"| `{name}` | {order} | {right} | {factor:.2f} |", flush=True)


if __name__ == "__main__":
    main()
