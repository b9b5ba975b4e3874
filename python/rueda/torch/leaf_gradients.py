"""Sums the gradients of leaves along their tree, and reduces them over the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch

from rueda import _native
from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError, RuedaError
from rueda.handles import Handle
from rueda.leaves import Leaves
from rueda.operations import Average
from rueda.recovery import can_recover
from rueda.submission import Collectives, refuse
from rueda.torch.gradient_memory import keep_gradients_in_heap
from rueda.torch.leaf_sum import LeafSum, Nodes
from rueda.torch.tensors import TorchAdapter

__all__ = ["LeafBucket", "LeafGradients"]

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
    """Tensors of one dtype whose partial sums are packed side by side and reduced together.

    ``keeps``: whether the partial sums outlive the reduction. Otherwise the result overwrites the first of them.
    """

    def __init__(
        self, name: str, tensors: Sequence[torch.Tensor], leaves: Leaves, keeps: bool
    ) -> None:
        self.name = name
        self.leaves = leaves
        self.tensors = list(tensors)
        self.waiting = len(self.tensors)
        self.handle: Handle[torch.Tensor] | None = None
        self.error: RuedaError | None = None  # of start()
        ends = [0, *accumulate(t.numel() for t in tensors)]
        self._slices = [slice(a, b) for a, b in pairwise(ends)]
        count = len(leaves.partials)
        rows = _rows(count + 1 if keeps else max(1, count), ends[-1], tensors[0].dtype)
        self._partials = rows[:count]
        self._result = rows[-1] if keeps else rows[0]

    def places(self, number: int) -> list[torch.Tensor]:
        """The memory of the partial sums of tensor ``number``."""
        return [self._part_of(row, number) for row in self._partials]

    def result(self, number: int) -> torch.Tensor:
        """The average of tensor ``number`` over the leaves, once the bucket is reduced."""
        return self._part_of(self._result, number)

    def _part_of(self, row: torch.Tensor, number: int) -> torch.Tensor:
        return row[self._slices[number]].view(self.tensors[number].shape)

    def start(self) -> None:
        """Starts the reduction; the caller finds its ``error`` later, so that backward() completes the leaf."""
        leaves = self.leaves
        try:
            self.handle = _collectives.allreduce_leaves(
                self._partials,
                self._result,
                leaves.ranks,
                len(self._partials),
                self.name,
                Average,
                1.0,
                leaves.process_set,
            )
        except RuedaError as error:
            self.error = error

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
        self.error = None


class LeafGradients:
    """One step: takes the leaves' results, yields averages over all leaves.

    With the last leaf of this rank, the partial sums of a tensor are complete. A bucket is reduced once those of all
    its tensors are, while backward() continues. ``computed``: what this rank has from an interrupted try of the step,
    see :meth:`computed`; then only the leaves that it lacks are computed, and the ``unfinished`` one.
    """

    def __init__(
        self,
        prefix: str,
        leaves: Leaves,
        bucket_bytes: int,
        computed: Mapping[torch.Tensor, Nodes] | None = None,
        unfinished: int | None = None,
    ) -> None:
        self.leaves = leaves
        self.sums: list[LeafSum] = []
        self.results: list[torch.Tensor] = []  # of each sum, once waited for
        self.missing = leaves.own  # the leaves that are to be computed
        self._prefix = prefix
        self._bucket_bytes = bucket_bytes
        self._computed = computed or {}
        self._unfinished = unfinished if unfinished in leaves.own else None
        # Costs a row of memory in each bucket.
        self._keeps = can_recover()
        self._buckets: list[LeafBucket] = []
        self._finished = 0  # of the missing leaves
        self._begun = False

    def add_tensors(self, tensors: dict[torch.Tensor, str]) -> range:
        """Adds tensors; returns their numbers.

        They share buckets in reverse order, in which backward() reaches them.
        """
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
        if self._computed and self.sums:
            missing = {leaf for each in self.sums for leaf in each.missing}
            if self._unfinished is not None:
                missing.add(self._unfinished)
            self.missing = tuple(sorted(missing))
        return range(before, len(self.sums))

    def _close(self, members: list[torch.Tensor], names: dict[torch.Tensor, str]) -> None:
        first, last = names[members[0]], names[members[-1]]
        what = first if len(members) == 1 else f"{first}..{last}"
        bucket = LeafBucket(f"{self._prefix}/{what}", members, self.leaves, self._keeps)
        self._buckets.append(bucket)
        for number, tensor in enumerate(members):
            kept = self._computed.get(tensor, {})
            self.sums.append(LeafSum(tensor, bucket, bucket.places(number), self.leaves, kept))
            self.results.append(bucket.result(number))

    @torch.no_grad()
    def begin(self) -> None:
        """Begins a step, after waiting for reductions still in flight and discarding them."""
        self.abandon()
        self._finished = 0
        self._begun = True
        for each in self.sums:
            each.start_over()
            each.take_kept()

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

    def computed(self) -> dict[torch.Tensor, Nodes]:
        """What this rank has of an unfinished step, by tensor; empty in a world that cannot lose ranks.

        Valid as long as this object does not begin another step.
        """
        return {each.tensor: each.nodes() for each in self.sums} if self._keeps else {}

    @property
    def unfinished(self) -> int | None:
        """The leaf that has begun, or had begun in the interrupted try, and has not ended."""
        if not self._begun:
            return self._unfinished
        return None if self.is_complete() else self.missing[self._finished]

    def add(self, number: int, value: torch.Tensor) -> None:
        """Adds a result of the current leaf. Raises InvalidArgumentError if there is no leaf or it has added one.

        A tensor that has kept the leaf's result from an interrupted try ignores it: it has the same bits.
        """
        leaf_sum = self.sums[number]
        leaf = None if not self._begun or self.is_complete() else self.missing[self._finished]
        if leaf is not None and leaf_sum.next_leaf == leaf:
            leaf_sum.add(value)
        elif leaf is None or leaf in leaf_sum.missing:
            raise InvalidArgumentError(
                "a gradient was computed outside of a leaf: call backward() once per leaf, and only within the loop "
                "over the optimizer's leaves()"
            )

    @torch.no_grad()
    def end_leaf(self) -> None:
        """Ends a leaf; counts zeros where it has produced no value."""
        for each in self.sums:
            if each.next_leaf == self.missing[self._finished]:
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
        return self._finished == len(self.missing)

    def wait(self) -> None:
        """Waits for all averages. Raises the first error, after the last reduction has ended."""
        errors: list[Exception] = []
        for bucket in self._buckets:
            try:
                if bucket.error is not None:
                    raise bucket.error
                assert bucket.handle is not None
                bucket.handle.result()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
