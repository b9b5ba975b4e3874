"""Shapes of tensors: which of them count as the same, how the engine compares them, and how its errors show them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence

from rueda.adapter import View
from rueda.errors import MismatchError
from rueda.torch.c10d.arguments import reshaped

__all__ = ["ONE", "are_alike", "as_rows", "compared", "show_shapes"]

# The shape that ranks agree on for a tensor of one element.
ONE = (1,)


def compared(shape: Sequence[int]) -> Sequence[int]:
    """The shape that ranks must agree on, to be passed to the engine: the same for all tensors of one element.

    Programs send a scalar where others receive into a tensor of shape ``[1]``: no order of elements can differ.
    """
    return ONE if math.prod(shape) == 1 else shape


def as_rows(view: View, rows: int, shape: Sequence[int]) -> View:
    """The same elements as ``rows`` tensors of this shape, so that the engine compares the shape between ranks.

    The engine may let ranks differ in the first extent. A single extent is left to :func:`show_shapes`.
    """
    return reshaped(view, (rows, *compared(shape)))


def are_alike(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether the shapes are the same. All shapes without elements are, and all of one element."""
    return compared(shape) == compared(other) or (0 in shape and 0 in other)


def show_shapes(error: Exception, what: str) -> None:
    """Makes an error about the shapes from :func:`as_rows` show those that ranks have passed.

    ``what``: the collective. Other errors do not change.
    """
    in_words = _in_words.get(what)
    if in_words is None or not isinstance(error, MismatchError) or error.field != "shape":
        return
    given = [json.loads(value) for value in error.values]
    shown = dict(zip(error.values, in_words(given), strict=True))
    found = "|".join(re.escape(value) for value in shown)
    error.args = (re.sub(f"({found})(?= on )", lambda match: shown[match[1]], str(error)),)
    error.values = tuple(shown.values())


def _of_gather(given: list[list[int]]) -> list[str]:
    """Outputs of unequal shapes are passed flat, see :mod:`rueda.torch.c10d.uneven`."""
    if all(len(shape) > 1 for shape in given):
        return _of_rows(given)
    return [
        f"outputs of shape {shape[1:]}" if len(shape) > 1 else "outputs of unequal shapes"
        for shape in given
    ]


def _of_reduce_scatter(given: list[list[int]]) -> list[str]:
    """Inputs of unequal shapes, and those that are one tensor, are passed flat."""
    if all(len(shape) == 1 for shape in given):
        return [str(shape) for shape in given]
    return [
        str(shape[1:]) if len(shape) > 1 else f"{shape[0]} elements for all ranks together"
        for shape in given
    ]


def _of_rows(given: list[list[int]]) -> list[str]:
    return [str(shape[1:]) for shape in given]


_in_words: dict[str, Callable[[list[list[int]]], list[str]]] = {
    "all-gather": _of_gather,
    "gather": _of_rows,
    "scatter": _of_rows,
    "reduce-scatter": _of_reduce_scatter,
}
