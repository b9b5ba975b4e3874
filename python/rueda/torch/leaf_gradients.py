"""Sums the gradients of leaves along their tree, and reduces them over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from rueda import _native
from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.leaves import Leaves
from rueda.operations import Average
from rueda.submission import Collectives, refuse
from rueda.torch.gradient_memory import keep_gradients_in_heap
from rueda.torch.tensors import TorchAdapter

__all__ = ["LeafGradients", "LeafSum"]

_collectives = Collectives(TorchAdapter())


def _rows(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """In memory that the host's other ranks can access."""
    size = rows * columns * dtype.itemsize
    if size == 0:
        return torch.empty(rows, columns, dtype=dtype, device="cpu")
    return (
        torch.frombuffer(_native.allocate(size), dtype=torch.uint8).view(dtype).view(rows, columns)
    )


class LeafBucket:
    """Tensors of one dtype whose partial sums are packed side by side and reduced together."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor], leaves: Leaves) -> None:
        self.name = name
        self.leaves = leaves
        self.tensors = list(tensors)
        self.waiting = len(self.tensors)
        self.handle: Handle[torch.Tensor] | None = None
        ends = [0, *accumulate(t.numel() for t in tensors)]
        self._slices = [slice(a, b) for a, b in pairwise(ends)]
        # The result overwrites the first partial sum.
        self._rows = _rows(max(1, len(leaves.partials)), ends[-1], tensors[0].dtype)

    def place(self, number: int, partial: int) -> torch.Tensor:
        """The memory of a partial sum of tensor ``number``."""
        return self._rows[partial][self._slices[number]].view(self.tensors[number].shape)

    def start(self) -> None:
        """Starts the reduction."""
        leaves = self.leaves
        partials = self._rows[: len(leaves.partials)]
        self.handle = _collectives.allreduce_leaves(
            partials,
            self._rows[0],
            leaves.ranks,
            len(partials),
            self.name,
            Average,
            1.0,
            leaves.process_set,
        )

    def refuse(self, why: str) -> None:
        """Makes the reduction fail on every rank."""
        self.handle = refuse(self.name, self.leaves.process_set, Refusal(why, True))  # type: ignore[assignment]

    def complete_one(self) -> None:
        """Called when the partial sums of one more tensor are complete."""
        self.waiting -= 1
        if self.waiting == 0 and self.handle is None:
            self.start()

    def start_over(self) -> None:
        """Waits for all tensors again."""
        self.waiting = len(self.tensors)
        self.handle = None


class LeafSum:
    """One tensor: sums the results of this rank's leaves as they arrive, keeping O(log n) values."""

    __slots__ = ("_bucket", "_completes", "_merges", "_places", "_stack", "added", "tensor")

    def __init__(self, bucket: LeafBucket, number: int, leaves: Leaves) -> None:
        self.tensor = bucket.tensors[number]
        self.added = 0  # leaves
        self._bucket = bucket
        self._stack: list[torch.Tensor] = []
        self._merges = leaves.merges
        ends = list(accumulate(count for _, count in leaves.partials))
        self._places = [bucket.place(number, partial) for partial in range(max(1, len(ends)))]
        # By position of a leaf: where to put the partial sum that it completes.
        self._completes = {end - 1: place for end, place in zip(ends, self._places, strict=False)}

    @property
    def result(self) -> torch.Tensor:
        """The average over the leaves, once the bucket is reduced; it overwrites the first partial sum."""
        return self._places[0]

    def start_over(self) -> None:
        """Starts again with the first leaf."""
        self.added = 0
        self._stack.clear()

    def add(self, value: torch.Tensor) -> None:
        """Adds the next leaf's result. Keeps ``value`` without changing it: others may use its memory. No autograd."""
        position = self.added
        if value.layout != torch.strided:
            self._bucket.refuse(
                f"a gradient of layout {value.layout} cannot be summed up over leaves"
            )
            return
        self.added = position + 1
        stack = self._stack
        place = self._completes.get(position)
        merges = self._merges[position]
        for number in range(merges if place is None else merges - 1):
            other = stack.pop()
            # Autograd may have handed over memory shared with other gradients; a sum has its own.
            value = other.add_(value) if number else torch.add(other, value)
        if place is None:
            stack.append(value)
        elif merges == 0:
            place.copy_(value)
        else:
            torch.add(stack.pop(), value, out=place)
        if self.added == len(self._merges):
            self._bucket.complete_one()


class LeafGradients:
    """One step: takes the leaves' results, yields averages over all leaves.

    With the last leaf of this rank, the partial sums of a tensor are complete. A bucket is reduced once those of all
    its tensors are, while backward() continues.
    """

    def __init__(self, prefix: str, leaves: Leaves, bucket_bytes: int) -> None:
        self.leaves = leaves
        self.sums: list[LeafSum] = []
        self._prefix = prefix
        self._bucket_bytes = bucket_bytes
        self._buckets: list[LeafBucket] = []
        self._finished = 0  # leaves
        self._begun = False

    def add_tensors(self, tensors: dict[torch.Tensor, str]) -> list[LeafSum]:
        """Adds tensors. They share buckets in reverse order, in which backward() reaches them."""
        open_buckets: dict[torch.dtype, list[torch.Tensor]] = {}
        before = len(self.sums)
        for tensor, name in reversed(tensors.items()):
            if tensor.device.type != "cpu":
                raise InvalidArgumentError(
                    f"reproducible=True: '{name}' is on {tensor.device}, only the CPU is supported"
                )
            members = open_buckets.setdefault(tensor.dtype, [])
            members.append(tensor)
            if sum(t.numel() * t.element_size() for t in members) >= self._bucket_bytes:
                self._close(open_buckets.pop(tensor.dtype), tensors)
        for members in open_buckets.values():
            self._close(members, tensors)
        keep_gradients_in_heap(tensors)
        return self.sums[before:]

    def _close(self, members: list[torch.Tensor], names: dict[torch.Tensor, str]) -> None:
        first, last = names[members[0]], names[members[-1]]
        what = first if len(members) == 1 else f"{first}..{last}"
        bucket = LeafBucket(f"{self._prefix}/{what}", members, self.leaves)
        self._buckets.append(bucket)
        self.sums += [LeafSum(bucket, number, self.leaves) for number in range(len(members))]

    def begin(self) -> None:
        """Begins a step, after waiting for reductions still in flight and discarding them."""
        self.abandon()
        for each in self.sums:
            each.start_over()
        self._finished = 0
        self._begun = True

    def abandon(self) -> None:
        """Waits for reductions in flight, however they end."""
        for bucket in self._buckets:
            if bucket.handle is not None:
                bucket.handle.wait()
            bucket.start_over()

    def forget(self) -> None:
        """Ends the step. Its results stay valid until the next one begins."""
        self._begun = False
        for bucket in self._buckets:
            bucket.start_over()

    def add(self, leaf_sum: LeafSum, value: torch.Tensor) -> None:
        """Adds a result of the current leaf. Raises InvalidArgumentError if there is no leaf or it has added one."""
        if not self._begun or leaf_sum.added > self._finished or self.is_complete():
            raise InvalidArgumentError(
                "a gradient that belongs to no leaf: call backward() once for each, and only within the loop over "
                "the optimizer's leaves()"
            )
        leaf_sum.add(value)

    @torch.no_grad()
    def end_leaf(self) -> None:
        """Ends a leaf; counts zeros where it has produced no value."""
        for each in self.sums:
            if each.added == self._finished:
                zeros = torch.zeros_like(each.tensor, memory_format=torch.contiguous_format)
                each.add(zeros)
        self._finished += 1

    def end(self) -> None:
        """Called after the last leaf, also on a rank without leaves."""
        if not self.leaves.own:
            for bucket in self._buckets:
                bucket.start()

    def is_begun(self) -> bool:
        """Whether a step has begun."""
        return self._begun

    def is_complete(self) -> bool:
        """Whether all leaves of this rank have ended."""
        return self._finished == len(self.leaves.own)

    def wait(self) -> None:
        """Waits for all averages. Raises the first error, after the last reduction has ended."""
        errors: list[Exception] = []
        for bucket in self._buckets:
            try:
                assert bucket.handle is not None
                bucket.handle.result()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
