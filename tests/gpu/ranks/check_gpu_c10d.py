"""Every rank: the CPU's checks of the torch.distributed backend "rueda", on tensors of the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType

import device  # finds what the checks on CPUs share
from device import DEVICE

os.environ["CHECKED_DEVICE"] = str(DEVICE)

import c10d
import check_c10d_collectives
import check_c10d_training
import torch


def checks_of(module: ModuleType) -> dict[str, Callable[[], None]]:
    """Returns the checks defined in ``module``."""
    return {name: check for name, check in vars(module).items() if name.startswith("check_")}


def check_road() -> None:
    """The reductions of these checks do not silently run on the CPU."""
    with device.counted() as grown:
        check_c10d_collectives.check_reduce_scatter()
        check_c10d_training.check_ddp()
    device.must_have_taken_its_road(grown)


if __name__ == "__main__":
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    modules = (check_c10d_collectives, check_c10d_training)
    all_checks = {name: check for module in modules for name, check in checks_of(module).items()}
    c10d.run({**all_checks, "check_road": check_road})
