"""What the others do while one rank is stopped, with strategies in which ranks meet in pairs.

    rueda run --no-prefix -np 4 python benchmarks/strategies/stopped.py [--pause S] [--steps N] [--step MS] [RUN ...]

Trains the network of measure.py on the digits; each step sleeps in the place of computing. A RUN is a strategy as
rueda.torch.wrap() takes it as text. In each the last rank gets SIGSTOP after a quarter of its steps, and SIGCONT ``S``
seconds later; the first is also done without. The table has, of that other rank which was worst off: how many steps it
took while the last was stopped, the seconds of all its steps and of the longest step(); then the seconds until the last
rank had done its steps, and the accuracy.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
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
RUNS = ("noloco:20", "noloco:20,timeout=0.5")


def stop_for(seconds: float) -> tuple[float, float]:
    """Stops this process, which a shell wakes up again; from when to when."""
    begin = time.monotonic()
    with subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)
        end = time.monotonic()
    return begin, end


def train(run: str, pause: float, steps: int, unit: float) -> str:
    """A line of the table."""
    torch.manual_seed(0)
    x, y, test_x, test_y = load()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    optimizer = rueda.wrap(model, optimizer, strategy=run)
    chosen = np.random.default_rng(0).integers(0, TRAINING, (steps, rueda.size(), BATCH))
    is_last = rueda.rank() == rueda.size() - 1
    stopped, ended, longest = (0.0, 0.0), [], 0.0
    rueda.barrier()
    begin = time.monotonic()
    for step, images in enumerate(chosen[:, rueda.rank()]):
        if pause and is_last and step == steps // 4:
            stopped = stop_for(pause)
        optimizer.zero_grad()
        F.cross_entropy(model(x[images]), y[images]).backward()
        time.sleep(unit)
        before = time.monotonic()
        optimizer.step()
        ended.append(time.monotonic())
        longest = max(longest, ended[-1] - before)
    optimizer.consolidate()
    first, last = rueda.allgather_object(stopped)[-1]
    meanwhile = sum(first < each < last for each in ended)
    told = rueda.allgather_object((meanwhile, ended[-1] - begin, longest))
    others = told[:-1]
    with torch.no_grad():
        accuracy = 100 * (model(test_x).argmax(1) == test_y).float().mean().item()
    cells = [
        f"{min(each[0] for each in others):,}" if pause else "",
        f"{max(each[1] for each in others):.1f}",
        f"{max(each[2] for each in others):.2f}",
        f"{told[-1][1]:.1f}",
        f"{accuracy:.1f}",
    ]
    return f"| `{run}` | {pause:g} | " + " | ".join(cells) + " |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", default=RUNS, metavar="RUN")
    parser.add_argument("--pause", type=float, default=30, help="seconds")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--step", type=float, default=40, help="milliseconds")
    options = parser.parse_args()
    rueda.init()
    torch.set_num_threads(1)
    speaks = rueda.rank() == 0
    if speaks:
        print(
            "| run | stopped, s | steps of the others meanwhile | their time, s | their longest step(), s "
            "| time of the last rank, s | accuracy, % |"
        )
        print("| --- |" + " ---: |" * 6, flush=True)
    for run, pause in [(options.runs[0], 0.0), *((run, options.pause) for run in options.runs)]:
        line = train(run, pause, options.steps, options.step / 1000)
        if speaks:
            print(line, flush=True)
    rueda.shutdown()


if __name__ == "__main__":
    main()
