"""Every rank: what is checked of the backend "rueda" of torch.distributed on the CPU, on tensors of the GPU."""

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
    """Those that ``module`` itself has."""
    return {name: check for name, check in vars(module).items() if name.startswith("check_")}


def check_road() -> None:
    """The reductions of this module's checks are not done on the CPU in secret."""
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
