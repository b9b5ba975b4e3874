"""The reductions under Horovod's names, without torch, and integer averages with Horovod's rounding."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

import rueda
from rueda.errors import UnsupportedError
from rueda.operations import Average, Max, Min, Product, ReduceOp, Sum
from rueda.process_sets import ProcessSet

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "chosen",
    "element_wise",
    "reduced",
]


class _AdasumOp:
    """The type of :data:`Adasum`, which is not an element-wise reduction."""

    def __repr__(self) -> str:
        return "Adasum"


Adasum = _AdasumOp()
"""The adaptive sum. Only PyTorch supports it; TensorFlow operations refuse it."""


def chosen(op: Any, average: bool | None) -> ReduceOp:
    """Returns the reduction that ``op`` or the deprecated ``average`` selects; by default the average.

    Raises ``ValueError`` if both are given, NotImplementedError for Adasum.
    """
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average, not both: op supersedes average")
        warnings.warn("average is deprecated: use op", DeprecationWarning, stacklevel=3)
        op = Average if average else Sum
    return element_wise(Average if op is None else op)


def element_wise(op: Any) -> ReduceOp:
    """Returns ``op``; raises NotImplementedError for Adasum, UnsupportedError for anything but a reduction."""
    if isinstance(op, _AdasumOp):
        raise NotImplementedError(
            "Adasum is supported for PyTorch only (rueda.horovod.torch): give Average or Sum"
        )
    if not isinstance(op, ReduceOp):
        raise UnsupportedError(f"{op!r} is not a reduction: give Average, Sum, Min, Max or Product")
    return op


def reduced(
    arrays: Sequence[Any],
    name: str | None,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[Any]:
    """Reduces the arrays, with one operation for integer averages, which are truncated, and one for the rest."""
    is_whole = [op == Average and np.issubdtype(a.dtype, np.integer) for a in arrays]
    whole = [index for index, cut_off in enumerate(is_whole) if cut_off]
    others = [index for index, cut_off in enumerate(is_whole) if not cut_off]
    results: dict[int, Any] = {}
    if whole:
        totals = rueda.grouped_allreduce(
            [arrays[i] for i in whole], name, Sum, prescale_factor, 1.0, process_set
        )
        averages = [divided(total, postscale_factor, process_set.size()) for total in totals]
        results.update(zip(whole, averages, strict=True))
    if others:
        of_others = f"{name}.others" if name and whole else name
        options = (prescale_factor, postscale_factor, process_set)
        found = rueda.grouped_allreduce([arrays[i] for i in others], of_others, op, *options)
        results.update(zip(others, found, strict=True))
    return [results[index] for index in range(len(arrays))]


def divided(total: Any, postscale: float, ranks: int) -> Any:
    """Divides a sum of integers by the number of ranks, rounded towards zero.

    Example::

        >>> divided(np.array([-5, 5]), 1.0, 2).tolist()
        [-2, 2]
    """
    if postscale != 1.0:
        return (total.astype(np.float64) * (postscale / ranks)).astype(total.dtype)
    # np.fix(total / ranks) would lose precision for 64-bit integers.
    downwards = total // ranks
    return (downwards + ((downwards < 0) & (downwards * ranks != total))).astype(total.dtype)
