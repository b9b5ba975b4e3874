"""Shared by the checks of this folder: device, expected path of tensors, counters, comparisons."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parallel" / "python"))

import rueda
import torch

# The CPU in a rehearsal.
DEVICE = torch.device(os.environ.get("RUEDA_TEST_DEVICE", "cuda:0"))
ON_GPU = DEVICE.type == "cuda"
# "nccl" or "staged"
ROAD = os.environ.get("EXPECTED_ROAD", "")


def needs_gpu(check: Callable[[], None]) -> Callable[[], None]:
    """Skips a check in a rehearsal: it is about streams or GPU counters."""

    @functools.wraps(check)
    def run_or_leave_out() -> None:
        if ON_GPU:
            check()
        elif rueda.rank() == 0:
            print("left out:", check.__name__, flush=True)

    return run_or_leave_out


@contextmanager
def counted() -> Iterator[dict[str, float]]:
    """Yields how much each counter grew in the block, filled in when the block ends."""
    grown: dict[str, float] = {}
    before = rueda.metrics()
    yield grown
    after = rueda.metrics()
    grown.update({name: after[name] - before.get(name, 0) for name in after})


def must_have_taken_its_road(grown: dict[str, float]) -> None:
    """Checks the path after a block that reduced tensors which NCCL supports."""
    if not ON_GPU:
        return
    assert ROAD in {"nccl", "staged"}, "EXPECTED_ROAD is not set"
    nccl, staged = grown["nccl_calls"], grown["bytes_staged"]
    assert (nccl > 0, staged > 0) == (ROAD == "nccl", ROAD == "staged"), (ROAD, grown)


def equal(left: torch.Tensor, right: torch.Tensor) -> None:
    """Checks for equal elements; ``left`` is on the device, ``right`` anywhere."""
    assert left.device == DEVICE, left.device
    assert left.dtype == right.dtype, (left.dtype, right.dtype)
    assert left.shape == right.shape, (left.shape, right.shape)
    wide = torch.complex128 if left.dtype.is_complex else torch.float64
    left, right = left.cpu().to(wide), right.cpu().to(wide)
    assert torch.equal(left, right), (left, right)


def ranks() -> range:
    """Returns all ranks of the world."""
    return range(rueda.size())
