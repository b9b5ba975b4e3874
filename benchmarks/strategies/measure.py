"""Trains a small network on scikit-learn's digits by each strategy: how well it does, and what ranks send for it.

    RUEDA_ALGORITHM=ring rueda run -np 4 python benchmarks/strategies/measure.py [--seeds N] [--fixed] [RUN ...]

A run is ``STRATEGY[@BATCH][+adam|+nesterov]``: a strategy as rueda.torch.wrap() takes it as text, a rank's batch (16),
and whether the ranks' own optimizer is Adam (lr 0.002), or SGD with Nesterov's momentum of 0.9 (lr 0.01), in the place
of SGD (lr 0.1). ``alone`` is one process that trains on all, ``once`` is ``oneshot`` with all epochs as one. All runs
go through the same 20 epochs of 1,408 images, 1,760 batches of 16: each rank takes its share of every epoch, which is
drawn anew, or with ``--fixed`` always the same images, which no other rank sees. The network is 64-64-10 with ReLU.

Where ranks of one host reach into each other's memory nothing is sent; the environment's ring makes them send what
hosts would, and what pairs swap, and what goes to and from tables, is counted likewise. The table has, over the seeds,
the mean accuracy on 360 test images with its standard error and the lowest, the steps of a rank, the bytes that a rank
sends in the whole run, and how many times fewer that is than what ``sync`` sends. The last line tells how much rank 0
sends, in percent of what a rank sends on average, in the run in which that is most.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rueda.torch as rueda
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python"))
from digits import load

TRAINING = 1437
IMAGES = 1408  # of an epoch: 88 batches of 16
COUNTERS = (
    "allreduce_payload_bytes_sent",
    "allgather_payload_bytes_sent",
    "point_to_point_bytes_sent",
    "table_bytes_sent",
)
RUNS = [
    "alone",
    "sync@4",
    "sync",
    "accumulate:4@4",
    "local:1",
    "local:4",
    "local:16",
    "local:88",
    "postlocal:16,after=110",
    "oneshot",
    "once",
    "diloco:16",
    "diloco:16,codec=int8",
    "diloco:16,fragments=2,delay=4,mixing=0.5",
    "diloco:16,fragments=2,delay=4,mixing=0.5,codec=int8",
    "sparseloco:16,0.03",
    "easgd:1",
    "easgd:4",
    "easgd:16",
    "adpsgd:1",
    "adpsgd:4",
    "noloco:16",
    "alone+adam",
    "sync+adam",
    "local:16+adam",
    "desloc:16,16,16+adam",
    "desloc:16,48,48+adam",
    "desloc:16,48,96+adam",
    "desloc:16,96,48+adam",
    "diloco:16+adam",
    "sparseloco:16,0.03+adam",
    "noloco:16+adam",
]
SERVED = [
    "ssp:0@4",
    "ssp:0",
    "ssp:3",
    "ssp:inf",
    "downpour:1",
    "downpour:5",
    "downpour:20",
    "downpour:20,guard=scale",
    "downpour:1,server=adagrad",
    "adag:5",
    "adag:20",
    "dynsgd:5",
    "dynsgd:20",
    "hogwild",
    "aeasgd:1",
    "aeasgd:4",
    "aeasgd:16",
    "eamsgd:4+nesterov",
    "eamsgd:16+nesterov",
]


class Outcome(NamedTuple):
    """Of one training."""

    accuracy: float  # percent
    steps: int  # of a rank
    sent: float  # bytes, of a rank on average
    rank_0_percent: float = 100.0  # what rank 0 sends, in percent of that


def batches(
    shuffle: np.random.Generator, steps: int, size: int, batch: int, fixed: bool
) -> np.ndarray[tuple[int, int, int], np.dtype[np.int64]]:
    """Which images are used in an epoch, by step and rank."""
    if not fixed:
        return shuffle.permutation(TRAINING)[: steps * size * batch].reshape(steps, size, batch)
    own = IMAGES // size
    orders = [rank * own + shuffle.permutation(own)[: steps * batch] for rank in range(size)]
    return np.stack([order.reshape(steps, batch) for order in orders], axis=1)


def train(run: str, seed: int, epochs: int, fixed: bool) -> Outcome:
    """One training by all ranks, each of which returns the same."""
    text, _, kind = run.partition("+")
    strategy, _, batch_text = text.partition("@")
    batch = int(batch_text or 16)
    torch.manual_seed(seed)
    x, y, test_x, test_y = load()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    elif kind == "nesterov":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    size, rank = (1, 0) if strategy == "alone" else (rueda.size(), rueda.rank())
    steps_of_epoch = IMAGES // (size * batch)
    distributed = strategy != "alone"
    if distributed:
        # ``once`` is averaged at the end only, as if all were one epoch.
        named, as_one = ("oneshot", epochs) if strategy == "once" else (strategy, 1)
        optimizer = rueda.wrap(
            model, optimizer, strategy=named, steps_per_epoch=steps_of_epoch * as_one
        )
    before = [rueda.metrics()[name] for name in COUNTERS]
    shuffle = np.random.default_rng(seed)
    for _ in range(epochs):
        for chosen in batches(shuffle, steps_of_epoch, size, batch, fixed)[:, rank]:
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
    if distributed:
        optimizer.consolidate()
    own = sum(rueda.metrics()[name] - count for name, count in zip(COUNTERS, before, strict=True))
    everyone = rueda.allgather_object(own)
    sent = sum(everyone) / rueda.size()
    rank_0_percent = 100 * everyone[0] / sent if sent else 100.0
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    return Outcome(
        100 * accuracy, steps_of_epoch * epochs, sent if distributed else 0.0, rank_0_percent
    )


def with_lowest(accuracies: list[float]) -> str:
    """Two cells of a table: the mean with its standard error, and the lowest."""
    accuracy = np.array(accuracies)
    error = accuracy.std(ddof=1) / np.sqrt(len(accuracy)) if len(accuracy) > 1 else float("nan")
    return f"{accuracy.mean():.2f} ± {error:.2f} | {accuracy.min():.2f}"


def row(run: str, outcomes: list[Outcome], sync: float) -> str:
    """Of the table."""
    sent = np.mean([each.sent for each in outcomes])
    fewer = f"{sync / sent:,.1f}" if sent else ""
    told = with_lowest([each.accuracy for each in outcomes])
    return f"| `{run}` | {told} | {outcomes[0].steps:,} | {sent:,.0f} | {fewer} |"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--served", action="store_true", help="strategies without synchrony")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--fixed", action="store_true", help="each rank has images of its own")
    options = parser.parse_args()
    rueda.init()
    torch.set_num_threads(1)
    speaks = rueda.rank() == 0
    if speaks:
        versions = f"Python {platform.python_version()}, torch {torch.__version__}"
        print(f"{rueda.size()} ranks, {options.seeds} seeds, {versions}, {platform.machine()}")
        print(
            "| run | accuracy, % | lowest | steps | bytes that a rank sends | times fewer than `sync` |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    sync = train("sync", 0, options.epochs, options.fixed).sent
    busiest = ("", 0.0)
    for run in options.runs or (SERVED if options.served else RUNS):
        outcomes = [
            train(run, seed, options.epochs, options.fixed) for seed in range(options.seeds)
        ]
        busiest = max(
            busiest, *((run, each.rank_0_percent) for each in outcomes), key=lambda one: one[1]
        )
        if speaks:
            print(row(run, outcomes, sync), flush=True)
    if speaks:
        print(
            f"rank 0 sends at most {busiest[1]:.2f}% of what a rank sends on average, in `{busiest[0]}`"
        )
    rueda.shutdown()


if __name__ == "__main__":
    main()
