"""Averages of whole numbers as Horovod forms them: rounded towards zero, the factor applied before that.

Rueda's own round towards negative infinity, as NumPy does. So these are sums, divided afterwards.
"""

from __future__ import annotations

import torch

from rueda.horovod.torch.reduce_ops import Average, Op
from rueda.process_sets import ProcessSet

__all__ = ["divided", "is_of_whole_numbers"]

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def is_of_whole_numbers(tensor: object, op: Op) -> bool:
    """Whether a tensor is to be averaged and the quotient to be rounded."""
    return op == Average and isinstance(tensor, torch.Tensor) and tensor.dtype in _WHOLE


def divided(total: torch.Tensor, postscale: float, process_set: ProcessSet) -> torch.Tensor:
    """Makes the average of a sum over the ranks, in its place.

    Example::

        >>> divided(torch.tensor([-5, 5]), 1.0, rueda.global_process_set)  # of one rank
        tensor([-5,  5])
    """
    ranks = process_set.size()
    with torch.no_grad():
        if postscale == 1.0:
            return total.div_(ranks, rounding_mode="trunc")
        return total.copy_(total.double().mul_(postscale / ranks))
