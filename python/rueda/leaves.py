"""Sums whose bits do not depend on how many ranks compute them.

The user divides the global batch into a fixed number of leaves. Their results are summed in one binary tree over the
leaves, whichever rank computes which; docs/reproducible.md says what that gives and costs.

Example::

    leaves = rueda.Leaves(8)
    sums = leaves.sums()
    for leaf in leaves.own:
        sums.add(gradient_of(leaf))  # a NumPy array
    mean = rueda.allreduce_leaves(sums.partials((3,), np.float64), leaves, name="gradient")
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rueda import _native
from rueda.adapter import unusable
from rueda.errors import InvalidArgumentError
from rueda.handles import Handle
from rueda.numpy_arrays import Array, NumpyAdapter
from rueda.operations import Average, ReduceOp
from rueda.process_sets import ProcessSet, global_process_set, number_of
from rueda.submission import Collectives, refuse

__all__ = [
    "LeafBatch",
    "LeafSampler",
    "LeafSums",
    "Leaves",
    "allreduce_leaves",
    "allreduce_leaves_async",
    "leaf_seed",
]

_collectives = Collectives(NumpyAdapter())
_WORD = (1 << 64) - 1


def leaf_seed(seed: int, step: int, leaf: int) -> int:
    """The seed of a leaf in a step: 63 bits, about half of which differ from those of any other leaf or step.

    Example::

        >>> rueda.leaf_seed(7, 0, 0) != rueda.leaf_seed(7, 0, 1)
        True
    """
    mixed = 0
    for value in (seed, step, leaf):
        mixed = _mix(mixed ^ (value & _WORD))
    return mixed >> 1


def _mix(value: int) -> int:
    """A step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _WORD
    return value ^ (value >> 31)


class Leaves:
    """Which rank computes which leaf of the global batch.

    ``count``: the number of leaves, the same on every rank and in every run that is to give the same bits. Leaves are
    divided over the ranks of ``process_set`` into ranges that are as even as possible. ``ranks``: alternatively, for
    each leaf, the rank of the set that computes it, the same on every rank.

    Raises :class:`rueda.InvalidArgumentError` for invalid numbers.

    Example::

        >>> leaves = rueda.Leaves(8)  # of one rank
        >>> leaves.own, leaves.partials
        ((0, 1, 2, 3, 4, 5, 6, 7), ((0, 8),))
    """

    def __init__(
        self,
        count: int,
        process_set: ProcessSet = global_process_set,
        ranks: Iterable[int] | None = None,
    ) -> None:
        self.count = _whole(count, "leaves")
        self.process_set = process_set
        own = _native.rank_in(number_of(process_set))
        self._size = process_set.size()  # kept: a world that has lost ranks no longer has it
        if ranks is None:
            self.ranks = tuple(_native.divide_leaves(self.count, self._size))
        else:
            self.ranks = tuple(_whole(rank, "ranks", least=0) for rank in ranks)
        if len(self.ranks) != self.count:
            raise InvalidArgumentError(f"{len(self.ranks)} ranks were given for {count} leaves")
        self.own = tuple(leaf for leaf, rank in enumerate(self.ranks) if rank == own)
        merges, partials = _native.schedule_of_parts(self.count, [(leaf, 1) for leaf in self.own])
        self.merges = tuple(merges)  # after each of this rank's leaves, see LeafSums
        self.partials = tuple(partials)  # this rank's: the first leaf of each, and the count

    def sums(self) -> LeafSums:
        """A new accumulator for this rank's leaves."""
        return LeafSums(self)

    def without(self, lost: Iterable[int], process_set: ProcessSet) -> Leaves:
        """The leaves once ranks of the set are lost; ``process_set`` has the remaining ranks, in the same order.

        After :func:`rueda.recover` that is the world: ``leaves.without(recovery.lost, rueda.global_process_set)``.

        The remaining ranks keep their leaves; those of lost ranks go to the ranks with the fewest.
        """
        gone = set(lost)
        survivors = sorted(set(range(self._size)) - gone)
        ranks = _native.reassign_leaves(list(self.ranks), survivors)
        return Leaves(self.count, process_set, ranks)

    def __repr__(self) -> str:
        return f"Leaves({self.count}, ranks={list(self.ranks)})"


class LeafSums:
    """Sums the results of this rank's leaves, in ascending order and along the tree: O(log n) arrays are kept.

    Example::

        >>> sums = rueda.Leaves(4).sums()  # of one rank
        >>> for leaf in range(4):
        ...     sums.add(np.array([leaf, 1.0]))
        >>> sums.partials((2,), np.float64)
        array([[6., 4.]])
    """

    def __init__(self, leaves: Leaves) -> None:
        self._leaves = leaves
        self._stack: list[Array] = []
        self._added = 0

    def add(self, value: npt.ArrayLike) -> None:
        """Adds the result of the next leaf; it is copied. Raises InvalidArgumentError after the last."""
        if self._added == len(self._leaves.own):
            raise InvalidArgumentError(f"this rank has no more than {self._added} leaves")
        total = np.array(value)
        for _ in range(self._leaves.merges[self._added]):
            total = np.add(self._stack.pop(), total, out=total)
        self._stack.append(total)
        self._added += 1

    def partials(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """The array for allreduce_leaves(). ``shape`` and ``dtype`` of a leaf's result: for a rank without leaves."""
        if self._added != len(self._leaves.own):
            raise InvalidArgumentError(
                f"{self._added} of this rank's {len(self._leaves.own)} leaves were added"
            )
        if not self._stack:
            return np.empty((0, *shape), dtype)
        return np.stack(self._stack)


def allreduce_leaves(
    partials: npt.ArrayLike,
    leaves: Leaves,
    name: str | None = None,
    op: ReduceOp = Average,
    postscale_factor: float = 1.0,
    output: Array | None = None,
) -> Array:
    """Reduces partial sums of leaves; every rank gets the bits that a single rank would get.

    ``partials``: of shape ``[len(leaves.partials), ...]``, see :meth:`LeafSums.partials`; the rest of the shape and
    the dtype are the same on every rank. ``op``: by default the average over the leaves. Every intermediate sum has the
    dtype of the array: 16-bit floats are rounded at each node of the tree.
    ``output``: a contiguous array for the result, possibly ``partials[0]``; by default a new array.
    Returns the result, without the first dimension. Raises as :func:`rueda.allreduce`, also if ranks differ in their
    leaves, and :class:`rueda.InvalidArgumentError` on every rank if one rank's first extent is wrong.

    Example::

        >>> leaves = rueda.Leaves(2)  # of one rank
        >>> rueda.allreduce_leaves(np.array([[3.0, 5.0]]), leaves, name="gradient")  # of two leaves
        array([1.5, 2.5])
    """
    return allreduce_leaves_async(partials, leaves, name, op, postscale_factor, output).result()


def allreduce_leaves_async(
    partials: npt.ArrayLike,
    leaves: Leaves,
    name: str | None = None,
    op: ReduceOp = Average,
    postscale_factor: float = 1.0,
    output: Array | None = None,
) -> Handle[Array]:
    """:func:`allreduce_leaves` that returns a handle immediately. ``partials`` must not be written meanwhile.

    Example::

        >>> handle = rueda.allreduce_leaves_async(np.ones((1, 2)), rueda.Leaves(2), name="gradient")
        >>> handle.result()
        array([0.5, 0.5])
    """
    given = np.asarray(partials)
    try:
        target = np.empty(given.shape[1:], given.dtype) if output is None else output
    except MemoryError as error:  # every rank is told
        return refuse(name, leaves.process_set, unusable(given, error))  # type: ignore[return-value]
    return _collectives.allreduce_leaves(
        given,
        target,
        leaves.ranks,
        len(leaves.partials),
        name,
        op,
        postscale_factor,
        leaves.process_set,
    )


@dataclass(frozen=True)
class LeafBatch:
    """The global batch of one step: the samples of each leaf.

    Example::

        >>> batch = next(rueda.LeafSampler(3, leaves=2, leaf_size=2, shuffle=False).epoch(0))
        >>> batch.samples[1].tolist(), round(batch.weight(0) + batch.weight(1), 6)
        ([2], 2.0)
    """

    samples: tuple[npt.NDArray[np.int64], ...]

    def weight(self, leaf: int) -> float:
        """The factor for a leaf's mean that makes the average over leaves that over samples; 1 if leaves are even."""
        total = sum(len(each) for each in self.samples)
        return len(self.samples[leaf]) * len(self.samples) / total


class LeafSampler:
    """Distributes the samples of a data set over leaves: each once per epoch, regardless of the ranks.

    ``items``: the number of samples; ``leaf_size``: the number of samples per leaf and step. The last step of an epoch
    has the remaining samples, divided as evenly as possible, unless ``drop_last``. ``shuffle``: the order depends on
    ``seed`` and the epoch.

    Example::

        >>> sampler = rueda.LeafSampler(10, leaves=2, leaf_size=2, shuffle=False)
        >>> [[list(map(int, leaf)) for leaf in batch.samples] for batch in sampler.epoch(0)]
        [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]
    """

    def __init__(
        self,
        items: int,
        leaves: int,
        leaf_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self.items = _whole(items, "items")
        self.leaves = _whole(leaves, "leaves")
        self.leaf_size = _whole(leaf_size, "leaf_size")
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last

    def __len__(self) -> int:
        """Steps per epoch."""
        batch = self.leaves * self.leaf_size
        return self.items // batch if self.drop_last else -(-self.items // batch)

    def order(self, number: int) -> npt.NDArray[np.int64]:
        """All samples in the order of an epoch."""
        if not self.shuffle:
            return np.arange(self.items)
        return np.random.default_rng([self.seed & _WORD, number]).permutation(self.items)

    def epoch(self, number: int, first_step: int = 0) -> Iterator[LeafBatch]:
        """The batches of an epoch, from ``first_step`` on."""
        order = self.order(number)
        batch = self.leaves * self.leaf_size
        for step in range(first_step, len(self)):
            samples = order[step * batch : (step + 1) * batch]
            yield LeafBatch(tuple(np.array_split(samples, self.leaves)))


def _whole(value: int, what: str, least: int = 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number < 1 << 31:
        raise InvalidArgumentError(f"{what}={value!r} is not a whole number from {least} on")
    return number
