"""Trains the network of examples/python/digits.py with several codecs, and tells what that costs in accuracy.

    rueda run -np 4 python benchmarks/compression/train_digits.py [--seeds N] [--epochs N] [CODEC ...]

CODEC is described in specs.py. Each is trained from the same seeds. The table has the mean accuracy on the test images
over the seeds, how much that is above what the same seed comes to without compression, as mean and standard error,
the mean loss over the last epoch, and the bytes that a rank sends in a step.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import rueda.torch as rueda
import specs
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python"))
from digits import GLOBAL_BATCH, load

CODECS = [
    "none",
    "fp16",
    "bf16",
    "int8",
    "topk:0.01",
    "topk:0.01-feedback",
    "randomk:0.05",
    "randomk:0.05-feedback",
]


def network() -> nn.Module:
    """As in the example."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.GELU(),
        nn.Linear(64, 10),
    )


def train(spec: str, seed: int, epochs: int) -> tuple[float, float, float]:
    """Accuracy in percent, loss and bytes per step."""
    torch.manual_seed(seed)
    x, y, test_x, test_y = load()
    model = network()
    momentum = 0.0 if specs.corrects_momentum(spec) else specs.MOMENTUM
    policy = specs.policy_of(spec, epochs * (len(y) // GLOBAL_BATCH))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    optimizer = rueda.DistributedOptimizer(inner, model.named_parameters(), compression=policy)
    shuffle = np.random.default_rng(seed)
    losses = []
    steps = 0
    before = rueda.metrics()["allreduce_payload_bytes_sent"]
    for _ in range(epochs):
        order = shuffle.permutation(len(y))[: len(y) // GLOBAL_BATCH * GLOBAL_BATCH]
        losses.clear()
        for batch in order.reshape(-1, GLOBAL_BATCH):
            share = batch[rueda.rank() :: rueda.size()]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[share]), y[share])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            steps += 1
    sent = rueda.metrics()["allreduce_payload_bytes_sent"] - before
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    own = torch.tensor(float(np.mean(losses)))
    return 100 * accuracy, rueda.allreduce(own).item(), sent / steps


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("codecs", nargs="*", default=CODECS, metavar="CODEC")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    rueda.init()
    torch.set_num_threads(1)
    if rueda.rank() == 0:
        print("| codec | accuracy, % | above none, points | loss | bytes sent per step |")
        print("| --- | ---: | ---: | ---: | ---: |")
    seeds = range(options.seeds)
    plain = np.array([train("none", seed, options.epochs) for seed in seeds])
    for spec in options.codecs:
        runs = plain
        if spec != "none":
            runs = np.array([train(spec, seed, options.epochs) for seed in seeds])
        accuracy, loss, sent = runs.mean(axis=0)
        if rueda.rank() == 0:
            above = specs.with_error(list(runs[:, 0] - plain[:, 0]))
            print(
                f"| {specs.shown(spec)} | {accuracy:.2f} | {above} | {loss:.4f} | {sent:,.0f} |",
                flush=True,
            )
    rueda.shutdown()


if __name__ == "__main__":
    main()
