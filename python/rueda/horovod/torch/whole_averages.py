"""Integer averages with Horovod's rounding: towards zero, after the factor is applied.

Rueda's own averages round towards negative infinity, like NumPy. So these are computed as sums and then divided.
"""

from __future__ import annotations

import torch

from rueda.horovod.process_sets import ProcessSet
from rueda.horovod.torch.reduce_ops import Average, Op

__all__ = ["divided", "is_of_whole_numbers", "ranks_of"]

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def is_of_whole_numbers(tensor: object, op: Op) -> bool:
    """Whether this is an average of integers, which must be rounded."""
    return op == Average and isinstance(tensor, torch.Tensor) and tensor.dtype in _WHOLE


def ranks_of(process_set: ProcessSet) -> int:
    """Returns the number of ranks in an operation just started; the set or the world may change later."""
    ranks = process_set.size()
    assert ranks is not None  # a set that is not added was refused before
    return ranks


def divided(total: torch.Tensor, postscale: float, ranks: int) -> torch.Tensor:
    """Divides a sum over ``ranks`` in place.

    Example::

        >>> divided(torch.tensor([-5, 5]), 1.0, 2)
        tensor([-2,  2])
    """
    with torch.no_grad():
        if postscale == 1.0:
            return total.div_(ranks, rounding_mode="trunc")
        return total.copy_(total.double().mul_(postscale / ranks))
