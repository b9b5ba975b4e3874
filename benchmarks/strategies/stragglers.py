"""What bounded staleness gains where ranks are slow now and then, and where one always is.

    rueda run -np 4 python benchmarks/strategies/stragglers.py [--seeds N] [--step MS]

Trains the network of measure.py on the digits. Each step sleeps in the place of computing: ``--step`` milliseconds, and
in *transient* one step in ten, drawn by chance on each rank, five times as long; in *permanent* every step of the last
rank is twice as long. The time that no strategy can undercut is that of the rank which sleeps longest in all, and what
waits for all in every step takes the sum over steps of the longest: both follow from the draws, and stand in the table,
as does what each slack takes at least, where nothing but sleeping takes any time.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

import numpy as np
import rueda.torch as rueda
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python"))
from digits import load

TRAINING, BATCH = 1437, 16
STRATEGIES = ("sync", "ssp:0", "ssp:1", "ssp:4", "ssp:inf")


def sleeps(kind: str, seed: int, steps: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Of each step and rank, in steps."""
    times = np.ones((steps, rueda.size()))
    if kind == "transient":
        times[np.random.default_rng(1000 + seed).random(times.shape) < 0.1] = 5
    elif kind == "permanent":
        times[:, -1] = 2
    return times


def least_with(slack: float, naps: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    """When the last rank is through, if none begins a step before all have done those ``slack + 1`` before it."""
    if slack == np.inf:
        return float(naps.sum(0).max())
    ends = np.zeros((len(naps) + 1, naps.shape[1]))  # of each step, behind a row of zeros
    for step, times in enumerate(naps):
        begins = np.maximum(ends[step], ends[max(0, step - int(slack))].max())
        ends[step + 1] = begins + times
    return float(ends[-1].max())


def train(strategy: str, kind: str, seed: int, steps: int, unit: float) -> tuple[float, float]:
    """Seconds until the last rank has done its steps, and the accuracy in percent."""
    torch.manual_seed(seed)
    x, y, test_x, test_y = load()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = rueda.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy=strategy)
    chosen = np.random.default_rng(seed).integers(0, TRAINING, (steps, rueda.size(), BATCH))
    naps = sleeps(kind, seed, steps)[:, rueda.rank()] * unit
    rueda.barrier()
    begin = time.perf_counter()
    for images, nap in zip(chosen[:, rueda.rank()], naps, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x[images]), y[images]).backward()
        time.sleep(nap)
        optimizer.step()
    own = time.perf_counter() - begin
    optimizer.consolidate()
    taken = max(rueda.allgather_object(own))
    optimizer.switch("sync")  # ends the table
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    return taken, 100 * accuracy


def main() -> None:
    """Prints a table for each kind of straggler."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=440)
    parser.add_argument("--step", type=float, default=10, help="milliseconds")
    options = parser.parse_args()
    unit = options.step / 1000
    rueda.init()
    torch.set_num_threads(1)
    speaks = rueda.rank() == 0
    if speaks:
        print(
            f"{rueda.size()} ranks, {options.seeds} seeds, {options.steps} steps of {options.step:g} ms, "
            f"Python {platform.python_version()}, torch {torch.__version__}"
        )
    for kind in ("none", "transient", "permanent"):
        drawn = [sleeps(kind, seed, options.steps) for seed in range(options.seeds)]
        least = float(np.median([each.sum(0).max() for each in drawn])) * unit
        together = float(np.median([each.max(1).sum() for each in drawn])) * unit
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in STRATEGIES}
        for seed in range(options.seeds):
            for name in STRATEGIES:
                runs[name].append(train(name, kind, seed, options.steps, unit))
        if not speaks:
            continue
        print(
            f"\n{kind}: at least {least:.2f} s, with all together in every step {together:.2f} s "
            f"({least / together:.2f} of it)\n"
        )
        print("| strategy | at least, s | seconds | of `ssp:0` | of `sync` | accuracy, % |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        medians = {name: float(np.median([t for t, _ in each])) for name, each in runs.items()}
        for name, each in runs.items():
            ratios = (
                f"{medians[name] / medians['ssp:0']:.2f} | {medians[name] / medians['sync']:.2f}"
            )
            accuracy = np.mean([found for _, found in each])
            slack = float(name.partition(":")[2] or 0)
            bound = float(np.median([least_with(slack, naps) for naps in drawn])) * unit
            print(
                f"| `{name}` | {bound:.2f} | {medians[name]:.2f} | {ratios} | {accuracy:.2f} |",
                flush=True,
            )
    rueda.shutdown()


if __name__ == "__main__":
    main()
