"""The reductions under Horovod's names, and its older argument ``average``."""

from __future__ import annotations

import warnings
from typing import Final

from rueda.errors import UnsupportedError
from rueda.operations import Average, Max, Min, Product, ReduceOp, Sum

__all__ = [
    "Adasum",
    "AdasumOp",
    "Average",
    "Max",
    "Min",
    "Op",
    "Product",
    "Sum",
    "chosen",
    "element_wise",
]


class AdasumOp:
    """The type of :data:`Adasum`, which is not an element-wise reduction."""

    def __repr__(self) -> str:
        return "Adasum"

    def __reduce__(self) -> str:
        return "Adasum"


Adasum: Final = AdasumOp()
"""The adaptive sum, see :mod:`rueda.horovod.torch.adasum`."""

Op = ReduceOp | AdasumOp


def chosen(op: Op | None, average: bool | None) -> Op:
    """Returns the reduction that ``op`` or the deprecated ``average`` selects; by default the average.

    Raises ``ValueError`` if both are given.

    Example::

        >>> chosen(None, None)
        <ReduceOp.AVERAGE: 1>
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("give either op or average, not both: op supersedes average")
    warnings.warn("average is deprecated: use op", DeprecationWarning, stacklevel=3)
    return Average if average else Sum


def element_wise(op: Op) -> ReduceOp:
    """Returns ``op`` for operations without Adasum; raises :class:`rueda.UnsupportedError` for Adasum.

    Example::

        >>> element_wise(Sum)
        <ReduceOp.SUM: 0>
    """
    if isinstance(op, AdasumOp):
        raise UnsupportedError("Adasum works with allreduce only")
    return op
