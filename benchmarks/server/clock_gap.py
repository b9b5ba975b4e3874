"""Asserts, at every step, that no rank of SSP goes further ahead than its slack allows.

    rueda run -np 3 python benchmarks/server/clock_gap.py [--steps N] [--slack S]

Each rank trains a model of three parameters for ``--steps`` steps with ``ssp:S`` and notes its steps where all can read
them. One rank in a hundred steps sleeps a millisecond, by chance. After each step, the gap to the slowest is at most
S + 1; what it was is told in the end, with how often. Ends with an error at the first step at which it is more.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import rueda
import rueda.torch as rt
import torch


def run(steps: int, slack: int, clocks: np.ndarray) -> Counter[int]:
    """How often this rank was how far ahead of the slowest."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    wrapped = rt.wrap(model, optimizer, strategy=f"ssp:{slack}")
    x, draw = torch.ones(1, 2), random.Random(rueda.rank())
    gaps: Counter[int] = Counter()
    rueda.barrier()
    for step in range(steps):
        if draw.random() < 0.01:
            time.sleep(0.001)
        wrapped.zero_grad()
        model(x).sum().backward()
        wrapped.step()
        clocks[rueda.rank()] = step + 1
        # Of others it may be more by now, and not less.
        gap = step + 1 - int(clocks.min())
        if gap > slack + 1:
            raise SystemExit(f"rank {rueda.rank()} is {gap} steps ahead after step {step + 1}")
        gaps[gap] += 1
    wrapped.consolidate()
    wrapped.strategy.stop()
    return gaps


def main() -> None:
    """As the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--slack", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rueda.init()
    folder = rueda.broadcast_object(tempfile.mkdtemp() if rueda.rank() == 0 else None, 0)
    path = Path(folder) / "clocks"
    if rueda.rank() == 0:
        path.write_bytes(bytes(8 * rueda.size()))
    rueda.barrier()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        clocks = np.frombuffer(shared, np.int64)
        began = time.perf_counter()
        all_gaps = rueda.allgather_object(run(options.steps, options.slack, clocks))
        took = time.perf_counter() - began
        del clocks
    if rueda.rank() == 0:
        shutil.rmtree(folder)
        gaps = sum(all_gaps, Counter())
        print(
            f"{options.steps} steps of {rueda.size()} ranks on {os.cpu_count()} processors, load "
            f"{os.getloadavg()[0]:.1f}, {took:.0f} s: the gap was at most {max(gaps)} of "
            f"{options.slack + 1}; how often: {dict(sorted(gaps.items()))}"
        )
    rueda.shutdown()


if __name__ == "__main__":
    main()
