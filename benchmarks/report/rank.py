"""One rank of benchmarks/report/scaling.py: a training whose computing is sleeping, so that ranks share processors.

python rank.py SETTING STEPS
"""

from __future__ import annotations

import sys
import time

import numpy as np
import rueda
import rueda.report

# Seconds of computing in a step, and tensors of so many bytes.
COMPUTE = 0.12
TENSORS, BYTES = 6, 512 << 10
FORWARD = 0.04


def reduced_at_once(steps: int, naps: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """Computes, then reduces all gradients as one, as a script without hooks does."""
    gradient = np.ones(TENSORS * BYTES // 4, np.float32)
    for step in range(steps):
        time.sleep(COMPUTE + naps[step])
        rueda.allreduce_(gradient, name="all")
        rueda.report.step()


def overlapped(steps: int, naps: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """Hands in each gradient while the backward pass goes on."""
    gradients = [np.ones(BYTES // 4, np.float32) for _ in range(TENSORS)]
    for step in range(steps):
        time.sleep(FORWARD + naps[step])
        handles = []
        for number, gradient in enumerate(gradients):
            time.sleep((COMPUTE - FORWARD) / TENSORS)
            handles.append(rueda.allreduce_async_(gradient, name=f"gradient{number}"))
        for handle in handles:
            handle.result()
        rueda.report.step()


def with_torch(steps: int, naps: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """DistributedOptimizer, whose steps the report finds by itself; the backward pass is a real one."""
    import rueda.torch
    import torch

    torch.set_num_threads(1)
    width = 512
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(3)))
    optimizer = rueda.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    x = torch.ones(1, width)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        time.sleep(COMPUTE + naps[step])
        loss.backward()
        optimizer.step()


def main() -> None:
    """What the arguments say."""
    rueda.init()
    setting, steps = sys.argv[1], int(sys.argv[2])
    naps = np.zeros(steps)
    if setting == "slow now and then":
        # One step in ten, on each rank by itself, is by its whole computing longer.
        naps[np.random.default_rng(rueda.rank()).random(steps) < 0.1] = COMPUTE
    train = {"overlapped": overlapped, "DistributedOptimizer": with_torch}
    train.get(setting, reduced_at_once)(steps, naps)


if __name__ == "__main__":
    main()
