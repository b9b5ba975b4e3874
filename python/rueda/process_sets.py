"""Ordered sets of ranks, each with operations of its own."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable

from rueda import _native
from rueda.arguments import RANK_BITS, fits
from rueda.errors import InvalidArgumentError

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """An ordered set of ranks that can be given to any collective as ``process_set``.

    It can be used once it has been added, by :func:`add_process_set` or ``init(process_sets=[...])``. Sets may overlap,
    and each may be used by a thread of its own. Raises :class:`rueda.InvalidArgumentError` for ranks that are no whole
    numbers.

    Example::

        >>> even = rueda.add_process_set(range(0, rueda.size(), 2))
        >>> if even.included():
        ...     total = rueda.allreduce(np.ones(3), process_set=even)
        >>> even.ranks, even.size(), even.rank()
        ([0], 1, 0)
        >>> rueda.remove_process_set(even)
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks: list[int] | None = _sorted(ranks)
        self.process_set_id: int | None = None

    @property
    def ranks(self) -> list[int]:
        """The set's world ranks, sorted."""
        if self._ranks is None:
            return _native.ranks_of(0)
        return list(self._ranks)

    def included(self) -> bool:
        """Whether this process is a member."""
        return self.rank() >= 0

    def rank(self) -> int:
        """This process's number within the set, or -1 when it is not a member."""
        return _native.rank_in(identify(self))

    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def __repr__(self) -> str:
        if self._ranks is None:
            return "ProcessSet(global)"
        return f"ProcessSet({self._ranks}, process_set_id={self.process_set_id})"


def _sorted(ranks: Iterable[int]) -> list[int]:
    try:
        numbers = sorted(operator.index(rank) for rank in ranks)
    except TypeError:
        raise InvalidArgumentError(
            f"the ranks of a process set are whole numbers, not {ranks!r}"
        ) from None
    if not all(fits(number, RANK_BITS) for number in numbers):
        raise InvalidArgumentError(f"there are no ranks such as some of {numbers}")
    return numbers


def _make_global() -> ProcessSet:
    process_set = ProcessSet(())
    process_set._ranks = None  # follows the world, which is not known yet
    process_set.process_set_id = 0
    return process_set


global_process_set: ProcessSet = _make_global()
"""All ranks."""


# Numbers end with the world they were given in.
_added: weakref.WeakSet[ProcessSet] = weakref.WeakSet()


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Adds a set of world ranks, given as :class:`ProcessSet` or as its ranks, and returns it.

    Every rank of the world must call this with the same ranks, members or not, also where the set was used in an
    earlier world. Raises :class:`rueda.InvalidArgumentError` for ranks that do not exist or occur twice, and
    :class:`rueda.MismatchError` where ranks disagree.

    Example::

        >>> first = rueda.add_process_set([0])
        >>> first.ranks
        [0]
        >>> rueda.remove_process_set(first)
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    process_set.process_set_id = _native.add_process_set(process_set.ranks)
    _added.add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> None:
    """Removes a set; every rank of the world must call this. The global set cannot be removed.

    Raises :class:`rueda.InvalidArgumentError` for a set that is not there.

    Example::

        >>> first = rueda.add_process_set([0])
        >>> rueda.remove_process_set(first)
        >>> first.process_set_id is None
        True
    """
    _native.remove_process_set(identify(process_set))
    process_set.process_set_id = None


def identify(process_set: ProcessSet) -> int:
    """The set's number; raises :class:`rueda.InvalidArgumentError` when it has not been added."""
    if process_set.process_set_id is None:
        raise InvalidArgumentError(
            f"{process_set!r} has not been added: call rueda.add_process_set()"
        )
    return process_set.process_set_id


def takes_part(process_set: ProcessSet) -> bool:
    """Whether this process is a member. Of the set of all it is one before init() as well."""
    return process_set.process_set_id == 0 or process_set.included()


def forget_process_sets() -> None:
    """Takes the number from every set, since the world is gone in which it was given."""
    for process_set in list(_added):
        process_set.process_set_id = None
    _added.clear()
