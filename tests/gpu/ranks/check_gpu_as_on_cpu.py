"""Every rank: what is checked of DistributedOptimizer and of checkpoints on the CPU, on models of the GPU."""

from __future__ import annotations

import os

import device  # noqa: F401 - finds what the checks on CPUs share
from device import DEVICE

os.environ["CHECKED_DEVICE"] = str(DEVICE)

import check_checkpoint
import check_torch_optimizer
import parallel
import torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    parallel.run(
        {
            name: check
            for module in (check_torch_optimizer, check_checkpoint)
            for name, check in vars(module).items()
            if name.startswith("check_")
        }
    )
