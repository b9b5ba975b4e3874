"""What the functions for arrays are given besides arrays, as the core takes it."""

from __future__ import annotations

from collections.abc import Iterable

from rueda.adapter import Refusal
from rueda.operations import ReduceOp

__all__ = ["factor_of", "reduction_of", "root_of", "rows_of", "text_of"]


def text_of(name: object) -> str:
    """A name as it travels; empty for an operation without one.

    Whatever is no text is named after its text, so that a wrong type on one rank makes no other wait.
    """
    if type(name) is str:
        return name
    return "" if name is None else str(name)


def reduction_of(op: ReduceOp) -> int:
    """The number of a reduction. Raises Refusal."""
    if type(op) is ReduceOp:
        return op
    try:
        return ReduceOp(op).value
    except ValueError:
        raise Refusal(f"op={op!r} is not one of rueda.Sum, Average, Min, Max, ...") from None


def factor_of(value: float) -> float:
    """A factor as a float. Raises Refusal."""
    if type(value) is float:
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Refusal(f"the scale factor {value!r} is not a number") from None


def rows_of(splits: Iterable[int] | None) -> list[int]:
    """How many rows go to each rank; empty for an even division. Raises Refusal."""
    if splits is None:
        return []
    try:
        return [int(rows) for rows in splits]
    except (TypeError, ValueError):
        raise Refusal(f"splits={splits!r} is not a sequence of whole numbers") from None


def root_of(root_rank: int) -> int:
    """A rank as an integer. Raises Refusal."""
    try:
        return int(root_rank)
    except (TypeError, ValueError):
        raise Refusal(f"root_rank={root_rank!r} is not a whole number") from None
