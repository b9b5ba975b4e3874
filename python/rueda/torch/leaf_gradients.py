"""Adds up the gradients of leaves along their tree, and reduces them over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from rueda import _native
from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.leaves import Leaves
from rueda.operations import Average
from rueda.submission import Collectives, refuse
from rueda.torch.heap import keep_gradients_in_heap
from rueda.torch.tensors import TorchAdapter

__all__ = ["LeafBucket", "LeafGradients"]

_collectives = Collectives(TorchAdapter())


def _rows(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """In memory that the other ranks of the host reach."""
    size = rows * columns * dtype.itemsize
    if size == 0:
        return torch.empty(rows, columns, dtype=dtype)
    return (
        torch.frombuffer(_native.allocate(size), dtype=torch.uint8).view(dtype).view(rows, columns)
    )


class LeafBucket:
    """Tensors of one dtype whose partial sums lie side by side and are reduced together."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor], leaves: Leaves) -> None:
        self.name = name
        self.leaves = leaves
        self.tensors = list(tensors)
        self.waiting = len(self.tensors)
        self.handle: Handle[torch.Tensor] | None = None
        ends = torch.tensor([0, *(t.numel() for t in tensors)]).cumsum(0).tolist()
        self._slices = [slice(a, b) for a, b in pairwise(ends)]
        # The result takes the place of the first partial sum.
        self._rows = _rows(max(1, len(leaves.partials)), ends[-1], tensors[0].dtype)

    def place(self, number: int, partial: int) -> torch.Tensor:
        """Where a partial sum of tensor ``number`` lies; that of partial 0 is also its result."""
        return self._rows[partial][self._slices[number]].view(self.tensors[number].shape)

    def start(self) -> None:
        """Begins to reduce."""
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
        """Fails on every rank."""
        self.handle = refuse(self.name, self.leaves.process_set, Refusal(why, True))  # type: ignore[assignment]

    def start_over(self) -> None:
        """Waits for all tensors again."""
        self.waiting = len(self.tensors)
        self.handle = None


class LeafGradients:
    """One step: what each leaf yields comes in, averages over all leaves come out.

    A tensor's values of this rank's leaves are added up as they come, with O(log n) of them kept; with the last leaf's
    its partial sums are complete, and a bucket is reduced once those of all its tensors are, while backward() goes on.
    """

    def __init__(self, prefix: str, leaves: Leaves, bucket_bytes: int) -> None:
        self.leaves = leaves
        self._prefix = prefix
        self._bucket_bytes = bucket_bytes
        self.buckets: list[LeafBucket] = []
        self._places: dict[torch.Tensor, tuple[LeafBucket, int]] = {}
        self._stacks: dict[torch.Tensor, list[torch.Tensor]] = {}
        self._added: dict[torch.Tensor, int] = {}
        # After which of this rank's leaves which partial sum is complete.
        lengths = [count for _, count in leaves.partials]
        self._completes = {sum(lengths[: i + 1]) - 1: i for i in range(len(lengths))}
        self._finished = 0  # leaves
        self._begun = False

    def add_tensors(self, tensors: dict[torch.Tensor, str]) -> None:
        """These take part as well. In the opposite order, in which backward() comes to them, they share buckets."""
        open_buckets: dict[torch.dtype, list[torch.Tensor]] = {}
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

    def _close(self, members: list[torch.Tensor], names: dict[torch.Tensor, str]) -> None:
        first, last = names[members[0]], names[members[-1]]
        what = first if len(members) == 1 else f"{first}..{last}"
        bucket = LeafBucket(f"{self._prefix}/{what}", members, self.leaves)
        self.buckets.append(bucket)
        for number, tensor in enumerate(members):
            self._places[tensor] = bucket, number

    def begin(self) -> None:
        """A step. What is still on its way is waited for, and forgotten."""
        for bucket in self.buckets:
            if bucket.handle is not None:
                bucket.handle.wait()
            bucket.start_over()
        self._stacks = {tensor: [] for tensor in self._places}
        self._added = dict.fromkeys(self._places, 0)
        self._finished = 0
        self._begun = True

    def is_begun(self) -> bool:
        """Whether a step is under way."""
        return self._begun

    def forget(self) -> None:
        """The step is over. Its results stay as they are until the next one begins."""
        self._begun = False
        for bucket in self.buckets:
            bucket.start_over()

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether the leaf under way has yielded a value of it."""
        return self._added[tensor] > self._finished

    @torch.no_grad()
    def add(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """What the leaf under way yields for a tensor. ``value`` is not used elsewhere and may be changed."""
        bucket, number = self._places[tensor]
        position = self._added[tensor] if self._begun else len(self.leaves.own)
        if position == len(self.leaves.own) or position > self._finished:
            raise InvalidArgumentError(
                f"'{bucket.name}': a second gradient within a leaf: call backward() once for each, and only within "
                f"the loop over the optimizer's leaves()"
            )
        if value.layout != torch.strided:
            bucket.refuse(f"a gradient of layout {value.layout} cannot be summed up over leaves")
            return
        self._added[tensor] = position + 1
        stack = self._stacks[tensor]
        merges = self.leaves.merges[position]
        partial = self._completes.get(position)
        for left in range(merges, 0, -1):
            before = stack.pop()
            if left == 1 and partial is not None:
                torch.add(before, value, out=bucket.place(number, partial))
            else:
                value = before.add_(value)
        if partial is None:
            stack.append(value)
        elif merges == 0:
            bucket.place(number, partial).copy_(value)
        if self._added[tensor] == len(self.leaves.own):
            self._complete(bucket)

    def _complete(self, bucket: LeafBucket) -> None:
        bucket.waiting -= 1
        if bucket.waiting == 0 and bucket.handle is None:
            bucket.start()

    def end_leaf(self) -> None:
        """Of what the leaf has yielded no value, it is zeros."""
        for tensor in self._places:
            if not self.has(tensor):
                self.add(tensor, torch.zeros_like(tensor, memory_format=torch.contiguous_format))
        self._finished += 1

    def end(self) -> None:
        """After the last leaf, also of a rank that has none."""
        if not self.leaves.own:
            for bucket in self.buckets:
                bucket.start()

    def is_complete(self) -> bool:
        """Whether all leaves of this rank are over."""
        return self._finished == len(self.leaves.own)

    def receive(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Waits; each tensor with its average over the leaves, valid until the next step begins."""
        errors: list[Exception] = []
        for bucket in self.buckets:
            try:
                assert bucket.handle is not None
                bucket.handle.result()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return [
            (tensor, bucket.place(number, 0)) for tensor, (bucket, number) in self._places.items()
        ]
