"""Trains on handwritten digits with any strategy of rueda.torch.wrap(), or with one defined here: ``drift``.

rueda run -np 4 python examples/python/strategies.py [--strategy local:8]
"""

import argparse
from dataclasses import dataclass

import numpy as np
import rueda.torch as rueda
import torch
import torch.nn.functional as F
from rueda.torch.strategies import Strategy, parse_strategy
from torch import nn

from digits import load

BATCH = 16  # per rank


@dataclass
class AverageWhenApart(Strategy):
    """Ranks take local steps until one has moved far from the last common parameters x̃. Then they average.

    Every ``period`` steps the ranks determine how far they have moved with one number: max_i |x_i - x̃| / |x̃|.
    If that is more than ``limit``, x_i ← 1/P Σ_j x_j and x̃ ← x_i.
    """

    period: int = 4
    limit: float = 0.05

    def start(self, replica):
        super().start(replica)
        self.averaged = 0
        self._remember()

    def _remember(self):
        parameters = self.replica.parameters
        self._last = {name: each.detach().clone() for name, each in parameters.items()}

    def after_step(self):
        replica = self.replica
        if replica.steps % self.period:
            return
        apart = sum(
            (replica.parameters[name] - each).square().sum() for name, each in self._last.items()
        )
        length = sum(each.square().sum() for each in self._last.values())
        gone = (apart / length).sqrt().detach()
        # The maximum is the same on all ranks, so that all decide alike.
        if rueda.allreduce(gone, op=rueda.Max, name=f"{replica.prefix}/gone") > self.limit:
            replica.average_parameters()
            self.averaged += 1
            self._remember()

    def state_dict(self):
        return {"last": self._last, "averaged": self.averaged}

    def load_state_dict(self, state):
        self._last = state["last"]
        self.averaged = state["averaged"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--strategy", default="drift")
    options = parser.parse_args()

    rueda.init()
    torch.manual_seed(0)
    x, y, test_x, test_y = load()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    is_own = options.strategy == "drift"
    strategy = AverageWhenApart() if is_own else parse_strategy(options.strategy)
    steps = len(y) // (BATCH * rueda.size())
    # The only line added. What follows is an ordinary training loop on this rank's share of the data.
    optimizer = rueda.wrap(model, optimizer, strategy=strategy, steps_per_epoch=steps)

    shuffle = np.random.default_rng(1)
    for _ in range(options.epochs):
        order = shuffle.permutation(len(y))[: steps * BATCH * rueda.size()]
        for batch in order.reshape(steps, rueda.size(), BATCH)[:, rueda.rank()]:
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    optimizer.consolidate()

    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    if rueda.rank() == 0:
        print(f"{optimizer.strategy.describe()}: test accuracy {100 * accuracy:.2f} %")
        if is_own:
            print(f"averaged {optimizer.strategy.averaged} times in {steps * options.epochs} steps")


if __name__ == "__main__":
    main()
