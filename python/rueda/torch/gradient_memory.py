"""Keeps the memory of gradients in the process, which autograd frees and allocates again in every step."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rueda.heap import keep_in_heap
from rueda.torch.shards import local_of

__all__ = ["keep_gradients_in_heap"]


def keep_gradients_in_heap(parameters: Iterable[torch.Tensor]) -> bool:
    """:func:`rueda.heap.keep_in_heap` for those of these parameters' gradients that are in CPU memory."""
    return keep_in_heap([local_of(p).nbytes for p in parameters if _makes_gradient(p)])


def _makes_gradient(parameter: torch.Tensor) -> bool:
    if not parameter.requires_grad or torch.nn.parameter.is_lazy(parameter):
        return False
    return parameter.is_cpu
