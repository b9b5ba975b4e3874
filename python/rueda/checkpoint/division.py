"""Decides which rank writes which part of what all ranks have: every rank computes the same, without a message.

Tensors are cut into pieces along one dimension, and ranks take pieces in order until each has its part of the bytes.
A piece is small compared with a rank's part, so that the parts are about equal, and at most 8 MiB: while torch writes
one, it blocks Python's other threads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

__all__ = ["Piece", "Shape", "divide"]

_MAX_PIECE = 8 << 20
_MIN_PIECE = 64 << 10
_PIECES_OF_RANK = 16  # at least about this many, so that parts differ by at most about 1/16


class Shape(NamedTuple):
    """A tensor's extents, and the bytes per element."""

    extents: tuple[int, ...]
    item_size: int

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.extents) * self.item_size


class Piece(NamedTuple):
    """A box of a tensor: where it begins, and its extent in each dimension."""

    name: str
    offsets: tuple[int, ...]
    extents: tuple[int, ...]
    is_whole: bool


def divide(
    tensors: Iterable[tuple[str, Shape]], ranks: int, of_first: Collection[str] = ()
) -> list[list[Piece]]:
    """For each rank, the pieces that it writes. The first rank writes all tensors of ``of_first``, in one piece each.

    Example::

        >>> shares = divide([("weight", Shape((1024, 256), 4)), ("bias", Shape((256,), 4))], ranks=2)
        >>> [sum(math.prod(piece.extents) for piece in share) for share in shares]
        [131072, 131328]
    """
    named = list(tensors)
    total = sum(shape.size for _, shape in named)
    part = max(1, math.ceil(total / ranks))
    limit = min(_MAX_PIECE, max(_MIN_PIECE, part // _PIECES_OF_RANK))
    shares: list[list[Piece]] = [[] for _ in range(ranks)]
    filled = 0  # bytes of the ranks up to the current one
    for name, shape in named:
        if name in of_first:
            shares[0].append(_whole(name, shape))
            filled += shape.size
    rank = 0
    for name, shape in named:
        if name in of_first:
            continue
        for piece in _pieces(name, shape, limit):
            size = math.prod(piece.extents) * shape.item_size
            while rank + 1 < ranks and filled + size / 2 > part * (rank + 1):
                rank += 1
            shares[rank].append(piece)
            filled += size
    return shares


def _whole(name: str, shape: Shape) -> Piece:
    return Piece(name, (0,) * len(shape.extents), shape.extents, True)


def _pieces(name: str, shape: Shape, limit: int) -> Iterator[Piece]:
    if shape.size <= limit:
        yield _whole(name, shape)
        return
    extents = shape.extents
    # Along the first dimension, a piece is contiguous in memory; if rows are too long, cut the longest dimension.
    axis = 0
    if shape.size // extents[0] > limit:
        axis = max(range(len(extents)), key=lambda each: extents[each])
    count = min(extents[axis], math.ceil(shape.size / limit))
    for number in range(count):
        begin = extents[axis] * number // count
        end = extents[axis] * (number + 1) // count
        offsets = tuple(begin if each == axis else 0 for each in range(len(extents)))
        sizes = tuple(
            end - begin if each == axis else extent for each, extent in enumerate(extents)
        )
        yield Piece(name, offsets, sizes, count == 1)
