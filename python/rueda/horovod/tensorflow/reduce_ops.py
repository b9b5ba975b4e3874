"""The reductions by Horovod's names, without torch, and averages of whole numbers as Horovod forms them."""

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
    """The type of :data:`Adasum`, which is no reduction of single elements."""

    def __repr__(self) -> str:
        return "Adasum"


Adasum = _AdasumOp()
"""The adaptive sum. It is there for PyTorch only; operations of TensorFlow refuse it."""


def chosen(op: Any, average: bool | None) -> ReduceOp:
    """The reduction that ``op`` and the deprecated ``average`` ask for together; by default the average.

    Raises ``ValueError`` where both are given, NotImplementedError for Adasum.
    """
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average, not both: op supersedes average")
        warnings.warn("average is deprecated: use op", DeprecationWarning, stacklevel=3)
        op = Average if average else Sum
    return element_wise(Average if op is None else op)


def element_wise(op: Any) -> ReduceOp:
    """``op`` itself; raises NotImplementedError for Adasum."""
    if isinstance(op, _AdasumOp):
        raise NotImplementedError(
            "Adasum is there for PyTorch only (rueda.horovod.torch): give Average or Sum"
        )
    if not isinstance(op, ReduceOp):
        raise UnsupportedError(f"{op!r} is no reduction: give Average, Sum, Min, Max or Product")
    return op


def reduced(
    arrays: Sequence[Any],
    name: str | None,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[Any]:
    """The arrays, reduced over the ranks, as one operation for each kind; averages of whole numbers are cut off."""
    whole = op == Average and all(np.issubdtype(a.dtype, np.integer) for a in arrays)
    options = (prescale_factor, 1.0 if whole else postscale_factor, process_set)
    found = rueda.grouped_allreduce(list(arrays), name, Sum if whole else op, *options)
    return [divided(a, postscale_factor, process_set.size()) for a in found] if whole else found


def divided(total: Any, postscale: float, ranks: int) -> Any:
    """The average of a sum of whole numbers over that many ranks, rounded towards zero.

    Example::

        >>> divided(np.array([-5, 5]), 1.0, 2).tolist()
        [-2, 2]
    """
    if postscale != 1.0:
        return (total.astype(np.float64) * (postscale / ranks)).astype(total.dtype)
    # np.fix(total / ranks) would lose digits of 64-bit numbers.
    downwards = total // ranks
    return (downwards + ((downwards < 0) & (downwards * ranks != total))).astype(total.dtype)
