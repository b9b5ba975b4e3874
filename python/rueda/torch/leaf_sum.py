"""Sums one tensor's results over this rank's leaves, along the tree."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Protocol

import torch

from rueda import _native
from rueda.leaves import Leaves

__all__ = ["LeafSum", "Node", "Nodes", "Places", "leaves_of"]

Node = tuple[int, int]  # of the tree over the leaves: the first leaf, and how many
Nodes = dict[Node, torch.Tensor]


def leaves_of(nodes: Collection[Node]) -> set[int]:
    """The leaves that the nodes sum up."""
    return {leaf for first, count in nodes for leaf in range(first, first + count)}


class Places(Protocol):
    """Where the partial sums of a tensor go."""

    def refuse(self, why: str) -> None:
        """Makes the reduction fail on every rank."""

    def complete_one(self) -> None:
        """Called when the partial sums of one more tensor are complete."""


class LeafSum:
    """One tensor: sums the results of this rank's leaves as they arrive, keeping O(log n) values.

    ``kept``: sums that this rank already has of the step, which was interrupted. Those within its leaves are used, and
    only the ``missing`` leaves are expected, in ascending order. ``places``: the memory of each partial sum.
    """

    __slots__ = (
        "_added",
        "_bucket",
        "_kept",
        "_merges",
        "_next",
        "_parts",
        "_places",
        "_stack",
        "missing",
        "tensor",
    )

    def __init__(
        self,
        tensor: torch.Tensor,
        bucket: Places,
        places: Sequence[torch.Tensor],
        leaves: Leaves,
        kept: Nodes,
    ) -> None:
        self.tensor = tensor
        self._bucket = bucket
        own = set(leaves.own)
        self._kept = {node: value for node, value in kept.items() if own >= leaves_of([node])}
        had = leaves_of(self._kept)
        self.missing = tuple(leaf for leaf in leaves.own if leaf not in had)
        # The sum goes through these in ascending order, with a stack: see rueda/leaves.h.
        self._parts: list[Node] = sorted([*self._kept, *((leaf, 1) for leaf in self.missing)])
        self._merges = (
            _native.schedule_of_parts(leaves.count, self._parts)[0] if had else leaves.merges
        )
        # By the number of leaves that they end with: where to put the partial sum that they complete.
        ends = accumulate(count for _, count in leaves.partials)
        self._places = dict(zip(ends, places, strict=False))
        self.start_over()

    @property
    def next_leaf(self) -> int | None:
        """The leaf whose result is expected next; None after the last."""
        return self._parts[self._next][0] if self._next < len(self._parts) else None

    def start_over(self) -> None:
        """Starts again with the first leaf that is missing."""
        self._next = 0
        self._added = 0  # leaves
        self._stack: list[torch.Tensor] = []

    def take_kept(self) -> None:
        """Adds the kept sums up to the next leaf that is missing. Without autograd."""
        while self._next < len(self._parts):
            value = self._kept.get(self._parts[self._next])
            if value is None:
                return
            self._push(value)

    def add(self, value: torch.Tensor) -> None:
        """Adds the next leaf's result. Keeps ``value`` without changing it: others may use its memory. No autograd."""
        if value.layout != torch.strided:
            self._bucket.refuse(
                f"a gradient of layout {value.layout} cannot be summed up over leaves"
            )
            return
        self._push(value)
        self.take_kept()

    def nodes(self) -> Nodes:
        """The sums that this rank has so far, including the kept ones; valid while nobody writes their memory."""
        summed: list[Node] = []
        for part, merges in zip(self._parts[: self._next], self._merges, strict=False):
            summed.append(part)
            for _ in range(merges):
                _, right = summed.pop()
                first, left = summed.pop()
                summed.append((first, left + right))
        placed = [place for end, place in self._places.items() if end <= self._added]
        rest = {node: self._kept[node] for node in self._parts[self._next :] if node in self._kept}
        return dict(zip(summed, [*placed, *self._stack], strict=True)) | rest

    def _push(self, value: torch.Tensor) -> None:
        merges = self._merges[self._next]
        self._added += self._parts[self._next][1]
        self._next += 1
        place = self._places.get(self._added)
        stack = self._stack
        for number in range(merges if place is None else merges - 1):
            # Autograd may have handed over memory shared with other gradients; a sum has its own.
            value = torch.add(stack.pop(), value, out=value if number else None)
        if place is None:
            stack.append(value)
        elif merges == 0:
            place.copy_(value)
        else:
            torch.add(stack.pop(), value, out=place)
        if self._next == len(self._parts):
            self._bucket.complete_one()
