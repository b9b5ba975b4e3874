"""Warns if ranks most likely share a GPU because each was not assigned its own."""

from __future__ import annotations

import logging
from functools import cache

import torch

from rueda import _native

__all__ = ["look_at_choice", "why_shared"]

_log = logging.getLogger("rueda")


def why_shared(index: int, local_rank: int, gpus: int) -> str:
    """What is wrong with a rank's GPU, and the remedy; empty if nothing is.

    ``index``: the GPU's number; ``gpus``: how many GPUs this process sees. If it sees only one, whatever started the
    rank has assigned it.
    """
    if index != 0 or local_rank == 0 or gpus <= local_rank:
        return ""
    return (
        f"local rank {local_rank} uses cuda:0, the GPU of local rank 0, and sees {gpus} GPUs: ranks that share one go "
        f"through the host's memory. Give each its own before the first tensor is made: "
        f"torch.cuda.set_device(rueda.local_rank())"
    )


@cache
def look_at_choice(index: int) -> None:
    """Warns once if a rank's first GPU tensor is on a GPU that it most likely was not meant to use."""
    if text := why_shared(index, _native.local_rank(), torch.cuda.device_count()):
        _log.warning("%s", text)
