"""Averages of whole numbers as Horovod forms them: rounded towards zero, the factor applied before that.

Rueda's own round towards negative infinity, as NumPy does. So these are sums, divided afterwards.
"""

from __future__ import annotations

import torch

from rueda.horovod.process_sets import ProcessSet
from rueda.horovod.torch.reduce_ops import Average, Op

__all__ = ["divided", "is_of_whole_numbers", "ranks_of"]

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def is_of_whole_numbers(tensor: object, op: Op) -> bool:
    """Whether a tensor is to be averaged and the quotient to be rounded."""
    return op == Average and isinstance(tensor, torch.Tensor) and tensor.dtype in _WHOLE


def ranks_of(process_set: ProcessSet) -> int:
    """How many ranks take part in what has just begun. Later the set may be gone, or another world there."""
    ranks = process_set.size()
    assert ranks is not None  # one that has not been added was refused before
    return ranks


def divided(total: torch.Tensor, postscale: float, ranks: int) -> torch.Tensor:
    """Makes the average of a sum over so many ranks, in its place.

    Example::

        >>> divided(torch.tensor([-5, 5]), 1.0, 2)
        tensor([-2,  2])
    """
    with torch.no_grad():
        if postscale == 1.0:
            return total.div_(ranks, rounding_mode="trunc")
        return total.copy_(total.double().mul_(postscale / ranks))
