"""Sets of intervals of time as arrays (n, 2) of begin and end. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["NONE", "Intervals", "inside", "intervals", "paint", "union"]

Intervals = npt.NDArray[np.int64]
NONE: Intervals = np.empty((0, 2), np.int64)


def intervals(begins: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Of these begins and ends; an end before its begin makes none."""
    both = np.column_stack([np.asarray(begins, np.int64), np.asarray(ends, np.int64)])
    return both[both[:, 1] > both[:, 0]]


def union(of: Intervals) -> Intervals:
    """The same points of time in disjoint intervals, in their order."""
    if not len(of):
        return NONE
    ordered = of[np.argsort(of[:, 0], kind="stable")]
    reached = np.maximum.accumulate(ordered[:, 1])
    starts = np.concatenate([[True], ordered[1:, 0] > reached[:-1]])
    last = np.concatenate([np.flatnonzero(starts)[1:] - 1, [len(ordered) - 1]])
    return np.column_stack([ordered[starts, 0], reached[last]])


def inside(of: Intervals, points: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which points lie in a union, whose intervals have their begins and not their ends."""
    if not len(of):
        return np.zeros(len(points), bool)
    at = np.searchsorted(of[:, 0], points, "right") - 1
    return np.asarray((at >= 0) & (points < of[np.maximum(at, 0), 1]))


def paint(
    begin: int, end: int, layers: Sequence[Intervals], cuts: npt.ArrayLike = ()
) -> npt.NDArray[np.int64]:
    """How long each layer is seen in each piece of [begin, end): (pieces, layers + 1), in nanoseconds.

    A point of time belongs to the first layer that has it; the last column is what none has. ``cuts``, in their order,
    divide the time into one piece more than there are of them. All of it together is ``end - begin``.
    """
    dividers = np.clip(np.asarray(cuts, np.int64), begin, end)
    whole = [union(layer) for layer in layers]
    edges = np.unique(
        np.concatenate([[begin, end], dividers, *(layer.reshape(-1) for layer in whole)])
    )
    edges = edges[(edges >= begin) & (edges <= end)]
    found = np.zeros((len(dividers) + 1, len(layers) + 1), np.int64)
    starts = edges[:-1]
    label = np.full(len(starts), len(layers))
    for number in reversed(range(len(layers))):
        label[inside(whole[number], starts)] = number
    piece = np.searchsorted(dividers, starts, "right")
    np.add.at(found, (piece, label), np.diff(edges))
    return found
