"""Inputs, results and bus bandwidth of each collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# A part of a result: (rank whose values they are, index of the first, count). Rank -1: the reduction.
Block = tuple[int, int, int]
REDUCTION = -1


@dataclass(frozen=True)
class Collective:
    """One row of the table below. `count`: elements of the larger of a rank's input and output.

    As in nccl-tests, the reported size is that of the larger buffer, the reported count that of the smaller.
    """

    name: str
    reduces: bool
    in_place: bool
    input_is_part: bool  # the input is 1/ranks of the size
    output_is_part: bool
    result: Callable[[int, int, int, int], list[Block]]  # of (rank, ranks, count, root)
    bus_factor: Callable[[int], float]  # of ranks: bus bandwidth / algorithm bandwidth

    def needs_parts(self) -> bool:
        """Whether the size must be divisible by the number of ranks."""
        return self.name not in {"allreduce", "broadcast"}

    def shown_count(self, count: int, ranks: int) -> int:
        """The value of the column `count`."""
        return count // ranks if self.needs_parts() else count


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


COLLECTIVES = {
    collective.name: collective
    for collective in (
        Collective(
            "allreduce", True, True, False, False,
            lambda rank, ranks, count, root: [(REDUCTION, 0, count)],
            lambda ranks: 2 * _share(ranks),
        ),
        Collective(
            "allgather", False, False, True, False,
            lambda rank, ranks, count, root: [(r, 0, count // ranks) for r in range(ranks)],
            _share,
        ),
        Collective(
            "broadcast", False, True, False, False,
            lambda rank, ranks, count, root: [(root, 0, count)],
            lambda ranks: 1.0,
        ),
        Collective(
            "reduce_scatter", True, False, False, True,
            lambda rank, ranks, count, root: [(REDUCTION, rank * count // ranks, count // ranks)],
            _share,
        ),
        Collective(
            "alltoall", False, False, False, False,
            lambda rank, ranks, count, root: [
                (r, rank * count // ranks, count // ranks) for r in range(ranks)
            ],
            _share,
        ),
    )
}  # fmt: skip
