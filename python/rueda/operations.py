"""The element-wise reductions."""

from __future__ import annotations

import enum

__all__ = ["Average", "BitAnd", "BitOr", "BitXor", "Max", "Min", "Product", "ReduceOp", "Sum"]


class ReduceOp(enum.IntEnum):
    """How the ranks' elements are combined into one. The numbers are those of ``rueda::ReduceOp``.

    ``AVERAGE`` is the sum divided by the number of ranks that contributed; on integers the quotient is rounded
    towards negative infinity, like NumPy's ``//``. ``MIN`` and ``MAX`` propagate NaN. On booleans ``SUM`` and ``MAX``
    are "or", ``PRODUCT`` and ``MIN`` are "and". :class:`rueda.UnsupportedError` is raised for the average of booleans,
    the minimum and maximum of complex numbers, and bitwise reductions of anything but integers and booleans.

    Example::

        >>> rueda.Sum is rueda.ReduceOp.SUM
        True
        >>> rueda.allreduce(np.array([3, 5]), op=rueda.Max)
        array([3, 5])
    """

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BIT_AND = 5
    BIT_OR = 6
    BIT_XOR = 7


Sum = ReduceOp.SUM
Average = ReduceOp.AVERAGE
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT
BitAnd = ReduceOp.BIT_AND
BitOr = ReduceOp.BIT_OR
BitXor = ReduceOp.BIT_XOR
