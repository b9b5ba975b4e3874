"""Tensors that recur at the same address, such as the buckets of DistributedDataParallel."""

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
    """Has tensors of 1 MiB or more moved to huge pages when they recur for the third time, once each.

    Their memory is ordinary, so other ranks access it through the kernel, which pins each page. The move is wasted on
    memory that is freed and reallocated between operations, so only in-place reductions are tracked.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], int] = {}

    def note(self, tensor: torch.Tensor, set_id: int) -> None:
        """Records that the process set reduces ``tensor`` in place."""
        if not tensor.is_cpu or tensor.nbytes < _MIN_BYTES or not tensor.is_contiguous():
            return
        place = tensor.data_ptr(), tensor.nbytes
        if place not in self._seen and len(self._seen) == _MAX_TENSORS:
            self._seen.clear()
        times = self._seen[place] = self._seen.get(place, 0) + 1
        if times == _OFTEN:
            # If the world is gone, the operation itself reports it.
            with suppress(NotInitializedError, ShutdownError):
                _native.settle_tensor(*place, set_id)
