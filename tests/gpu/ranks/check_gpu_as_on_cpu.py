"""Every rank: the CPU's checks of DistributedOptimizer and of checkpoints, on models of the GPU."""

from __future__ import annotations

import os

import device  # finds what the checks on CPUs share
from device import DEVICE

os.environ["CHECKED_DEVICE"] = str(DEVICE)

import check_checkpoint
import check_torch_optimizer
import parallel
import torch


def check_road() -> None:
    """The models of these checks really are on the GPU."""
    with device.counted() as grown:
        check_torch_optimizer.check_equals_training_on_the_whole_batch()
    device.must_have_taken_its_road(grown)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    shared = {
        name: check
        for module in (check_torch_optimizer, check_checkpoint)
        for name, check in vars(module).items()
        if name.startswith("check_")
    }
    parallel.run({**shared, "check_road": check_road})
