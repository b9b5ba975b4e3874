"""How far two recorded runs are apart, step by step and tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rueda.equivalence.record_files import Array, RankRecord

__all__ = ["distances", "furthest", "same_layout", "total", "ways_apart"]


def same_layout(one: RankRecord, other: RankRecord) -> bool:
    """Whether their states can be compared: the same tensors, recorded after the same steps."""
    same_tensors = (
        one.layout.names == other.layout.names and one.layout.numels == other.layout.numels
    )
    return same_tensors and np.array_equal(one.state_steps, other.state_steps)


def distances(one: RankRecord, other: RankRecord) -> Array:
    """(R+1, N): Euclidean distances of the tensors in each recorded state, from their sketches.

    Exactly 0 where the bits are the same and nowhere else, infinite where a number is not finite in one of them only.
    They must have :func:`same_layout`.
    """
    columns = []
    for number, (a, b) in enumerate(zip(one.sketches, other.sketches, strict=True)):
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.sqrt(((a - b) ** 2).sum(1))
        apart = np.where(np.isnan(apart), np.inf, apart)
        same = one.hashes[:, number] == other.hashes[:, number]
        # Sketches may not tell what bits do: 0 and -0, or what is lost in a sum.
        columns.append(np.where(same, 0.0, np.maximum(apart, np.finfo(float).tiny)))
    if not columns:
        return np.zeros((len(one.state_steps), 0))
    return np.stack(columns, 1)


def ways_apart(one: RankRecord, other: RankRecord) -> Array:
    """(R+1, N): how far apart two trainings have taken each tensor, each from where it began.

    What nobody trains has gone nowhere, however far two seeds have drawn it from each other. 0 where a number is not
    finite, of which no way can be told. They must have :func:`same_layout`.
    """
    columns = []
    for a, b in zip(one.sketches, other.sketches, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.sqrt((((a - a[:1]) - (b - b[:1])) ** 2).sum(1))
        columns.append(np.where(np.isfinite(apart), apart, 0.0))
    if not columns:
        return np.zeros((len(one.state_steps), 0))
    return np.stack(columns, 1)


def furthest(run: Sequence[RankRecord], reference: RankRecord) -> tuple[Array, np.ndarray]:
    """The distances of the rank that is furthest from the reference, and which rank that is: both (R+1, N)."""
    of_ranks = np.stack([distances(rank, reference) for rank in run])
    return of_ranks.max(0), of_ranks.argmax(0)


def total(apart: Array) -> Array:
    """(R+1,): of whole states, from those of their tensors."""
    return np.asarray(np.sqrt((apart**2).sum(-1)))
