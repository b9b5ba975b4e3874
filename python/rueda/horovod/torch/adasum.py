"""Adasum: a sum that averages parallel gradients and adds orthogonal ones.

Two gradients a and b become

    (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b

which is a if a = b, and a + b if they are orthogonal. More than two are combined in a binary tree over the ranks,
neighbours first; at a level with an odd count the last moves up unchanged, so any number of ranks works. Source:
S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021 (arXiv:2006.02924).

Each rank gathers all ranks' tensors and combines them itself, so all ranks get the same bits. The memory cost is one
copy of the tensor per rank.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rueda.adapter import Refusal
from rueda.errors import UnsupportedError
from rueda.handles import Handle, transformed
from rueda.process_sets import ProcessSet
from rueda.submission import Collectives, refuse
from rueda.torch.tensors import TorchAdapter

__all__ = ["adasum_async", "combined", "without_gradient"]

_adapter = TorchAdapter(gpus=True)
_collectives = Collectives(_adapter)
# A smaller squared norm may have lost its precision; such a gradient is effectively zero.
_SMALLEST = math.sqrt(sys.float_info.min)


def adasum_async(
    tensor: torch.Tensor,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    target: torch.Tensor | None = None,
) -> Handle[torch.Tensor]:
    """Returns a handle whose result is the adaptive sum of the ranks' tensors, written into ``target`` if given.

    ``tensor``: any shape, the same on every rank, of a floating-point dtype. 16-bit floats are combined as float32.
    If any rank's tensor is unusable, every rank raises :class:`rueda.UnsupportedError`.

    Example::

        delta = adasum_async(delta, "delta", 1.0, 1.0, rueda.global_process_set).result()
    """
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        why = f"Adasum takes tensors of floating-point numbers, not {kind}"
        return refuse(name, process_set, Refusal(why, True))  # type: ignore[return-value]  # never returns
    try:
        source, _ = _adapter.read(tensor)
    except Refusal as refusal:
        return refuse(name, process_set, refusal)  # type: ignore[return-value]  # as above
    gathered = _collectives.allgather(source.unsqueeze(0), name, process_set)

    def finish(rows: torch.Tensor) -> torch.Tensor:
        result = combined([row * prescale for row in _widened(rows)]) * postscale
        result = result.to(source.dtype)
        if target is None:
            return result
        with torch.no_grad():
            target.copy_(result)
        return target

    return transformed(gathered, finish)


class _WithoutGradient(torch.autograd.Function):
    """Makes its results depend on its inputs in autograd, but without a derivative."""

    @staticmethod
    def forward(
        ctx: Any, reduce: Callable[[], list[torch.Tensor]], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Reduces."""
        return tuple(reduce())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Raises UnsupportedError."""
        raise UnsupportedError(
            "no gradient is defined through adasum: use Sum or Average, or detach()"
        )


def without_gradient(
    reduce: Callable[[], list[torch.Tensor]], tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Returns what ``reduce`` makes of ``tensors``; backward() raises at these results if a tensor needs a gradient.

    Otherwise autograd would treat them as constants, and training would silently lose part of its gradient.

    Example::

        (delta,) = without_gradient(lambda: [adasum_async(...).result()], [delta])
    """
    results: tuple[torch.Tensor, ...] = _WithoutGradient.apply(reduce, *tensors)  # type: ignore[no-untyped-call]
    return list(results)


def combined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the adaptive sum of one or more tensors of the same shape, as every rank computes it.

    Example::

        >>> combined([torch.tensor([2.0, 0.0]), torch.tensor([2.0, 0.0])])
        tensor([2., 0.])
        >>> combined([torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0])])
        tensor([2., 1.])
    """
    level = list(tensors)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [_pair(a, b) for a, b in pairs] + level[len(level) & ~1 :]
    return level[0]


def _pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide_a, wide_b = a.double().flatten(), b.double().flatten()
    dot = float(wide_a @ wide_b)
    weights = []
    for wide in (wide_a, wide_b):
        square = float(wide @ wide)
        weights.append(1.0 - dot / square / 2 if square >= _SMALLEST else 1.0)
    return a * weights[0] + b * weights[1]


def _widened(rows: torch.Tensor) -> torch.Tensor:
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
