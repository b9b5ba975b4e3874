"""Shared code of the checks that every rank runs over the backend "rueda"."""

from __future__ import annotations

import os
import warnings
from typing import Any

import rueda.torch.c10d  # noqa: F401 - registers the backend
import torch
import torch.distributed as dist
from parallel import raises
from serving import requested

__all__ = ["DEVICE", "raises", "run", "still_works"]

# Device of all tensors that do not name another.
DEVICE = torch.device(os.environ.get("CHECKED_DEVICE", "cpu"))


def run(checks: dict[str, Any]) -> None:
    """Runs the functions named ``check_...`` of a module, on all ranks in the same order."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    if DEVICE.type != "cpu":
        torch.set_default_device(DEVICE)
    dist.init_process_group("rueda")
    for name in requested([name for name in checks if name.startswith("check_")]):
        checks[name]()
        dist.barrier()
        if dist.get_rank() == 0:
            print("ok", name, flush=True)
    dist.destroy_process_group()


def still_works(group: dist.ProcessGroup | None = None) -> None:
    """Checks that the group survives: an allreduce gives the right sum."""
    size = dist.get_world_size(group)
    total = torch.full((7,), dist.get_rank(group) + 1)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [size * (size + 1) // 2] * 7, total
