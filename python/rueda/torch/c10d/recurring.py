"""Tensors that come again where they were, as the buckets of DistributedDataParallel do."""

from __future__ import annotations

from contextlib import suppress

import torch

from rueda import _native
from rueda.errors import NotInitializedError, ShutdownError

__all__ = ["RecurringTensors"]

_MIN_BYTES = 1 << 20
_OFTEN = 3
_MAX_TENSORS = 1024


class RecurringTensors:
    """Has large tensors put onto huge pages when they come for the third time, once each.

    Their memory is ordinary, so that other ranks reach it through the kernel, which takes hold of each page. Memory
    that is freed and taken anew in between costs that once for nothing, so only reductions in place are looked at.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], int] = {}

    def note(self, tensor: torch.Tensor, set_id: int) -> None:
        """``tensor`` is being reduced in place by that process set."""
        if not tensor.is_cpu or tensor.nbytes < _MIN_BYTES or not tensor.is_contiguous():
            return
        place = tensor.data_ptr(), tensor.nbytes
        if place not in self._seen and len(self._seen) == _MAX_TENSORS:
            self._seen.clear()
        times = self._seen[place] = self._seen.get(place, 0) + 1
        if times == _OFTEN:
            # Where the world has just gone, the operation tells.
            with suppress(NotInitializedError, ShutdownError):
                _native.settle_tensor(*place, set_id)
