"""Ordered sets of ranks, each with its own operations."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from rueda import _native
from rueda.arguments import RANK_BITS, fits, shown
from rueda.error_texts import describe
from rueda.errors import InvalidArgumentError

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """An ordered set of ranks that can be given to any collective as ``process_set``.

    It can be used once it has been added, by :func:`add_process_set` or ``init(process_sets=[...])``. Sets may overlap,
    and each may be used by its own thread. When ranks are lost, leave or join, the set continues with its remaining
    members, under their new ranks. Raises :class:`rueda.InvalidArgumentError` for ranks that are not whole numbers.

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
        """The set's world ranks, sorted; empty if all of them are lost."""
        if self._ranks is None:
            return _native.ranks_of(0)
        return list(self._ranks)

    def included(self) -> bool:
        """Whether this process is a member."""
        return self.rank() >= 0

    def rank(self) -> int:
        """This process's rank within the set, or -1 if it is not a member."""
        return _native.rank_in(number_of(self))

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
            f"the ranks of a process set are a list of whole numbers, not {shown(ranks)}"
        ) from None
    if not all(fits(number, RANK_BITS) for number in numbers):
        raise InvalidArgumentError(f"some of {shown(numbers)} cannot be ranks")
    return numbers


def _make_global() -> ProcessSet:
    process_set = ProcessSet(())
    process_set._ranks = None  # follows the world, which is not known yet
    process_set.process_set_id = 0
    return process_set


global_process_set: ProcessSet = _make_global()
"""All ranks."""


# Their numbers become invalid when the world is left, and their ranks change in a world that follows.
_added: weakref.WeakSet[ProcessSet] = weakref.WeakSet()


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Adds a set of world ranks, given as a :class:`ProcessSet` or by its ranks, and returns it.

    Every rank of the world must call this with the same ranks, members or not, also if the set was used before
    :func:`rueda.shutdown`. Raises :class:`rueda.InvalidArgumentError` for ranks that do not exist or occur twice, or
    if what some rank gives is no list of whole numbers, and :class:`rueda.MismatchError` if ranks disagree. Every rank
    raises the error, but that of the constructor of :class:`ProcessSet`, which only the rank itself knows of.

    Example::

        >>> first = rueda.add_process_set([0])
        >>> first.ranks
        [0]
        >>> rueda.remove_process_set(first)
    """
    require_arrival()
    try:
        if not isinstance(process_set, ProcessSet):
            process_set = ProcessSet(process_set)
        ranks = _sorted(process_set.ranks)
    except Exception as error:  # whatever the ranks' own __iter__ raises
        refuse_change("add_process_set()", error)
    process_set.process_set_id = _native.add_process_set(ranks)
    _added.add(process_set)
    return process_set


def stand_for(process_set: ProcessSet, number: int) -> None:
    """Makes the object stand for a set that has been added already, of the same ranks."""
    process_set.process_set_id = number
    _added.add(process_set)


def remove_process_set(process_set: ProcessSet) -> None:
    """Removes a set; every rank of the world must call this. The global set cannot be removed.

    Operations that all members of the set submitted before complete; those that only some submitted fail with
    :class:`rueda.ShutdownError`.

    Raises :class:`rueda.InvalidArgumentError`, on every rank, for a set that does not exist or if some rank gives
    anything else.

    Example::

        >>> first = rueda.add_process_set([0])
        >>> rueda.remove_process_set(first)
        >>> first.process_set_id is None
        True
    """
    require_arrival()
    try:
        number = number_of(process_set)
    except InvalidArgumentError as error:
        refuse_change("remove_process_set()", error)
    _native.remove_process_set(number)
    process_set.process_set_id = None
    _added.discard(process_set)


def refuse_change(call: str, error: Exception) -> NoReturn:
    """Raises ``error`` of this rank in a call that adds or removes a set, on every rank: the others await this one.

    Outside a world nobody waits, and the error itself is raised.
    """
    if not _native.is_initialized():
        raise error
    from rueda.adapter import Refusal
    from rueda.submission import refuse  # which imports this module

    why = str(error) if isinstance(error, InvalidArgumentError) else describe(type(error), error)
    # It takes the place of the change, which is an operation without a name of the world.
    refuse(None, global_process_set, Refusal(f"{call}: {why}")).result()
    raise AssertionError("a refused operation completed") from error


def require_process_set(value: object) -> None:
    """Raises :class:`rueda.InvalidArgumentError` for anything else, on this rank: no other knows which was meant."""
    if not isinstance(value, ProcessSet):
        raise InvalidArgumentError(
            f"{shown(value)} is not a process set: pass what rueda.add_process_set() has returned, or nothing for all "
            "ranks"
        )


def number_of(process_set: ProcessSet) -> int:
    """The set's number; raises :class:`rueda.InvalidArgumentError` if it has not been added, or is no set at all."""
    require_process_set(process_set)
    if process_set.process_set_id is None:
        raise InvalidArgumentError(
            f"{process_set!r} has not been added: call rueda.add_process_set()"
        )
    return process_set.process_set_id


def identify(process_set: ProcessSet) -> int:
    """The set's number, for an operation of its members. Raises as :func:`number_of`, and :func:`require_arrival`."""
    number = number_of(process_set)
    if number == 0:
        require_arrival()
    return number


@dataclass
class Arrival:
    """Where this process, a newcomer, is awaited by the ranks that it has joined; empty if nowhere in particular.

    They wait in a collective of the world, and nothing else of the world can be done before this process takes part.
    """

    place: str = ""


arrival = Arrival()


def require_arrival() -> None:
    """Raises :class:`rueda.InvalidArgumentError` on a newcomer that has not come to where the others await it.

    Otherwise all would wait for each other until they give up, and the job would end.
    """
    if arrival.place:
        raise InvalidArgumentError(
            f"this process has joined a running job, whose ranks wait for it in {arrival.place}: call that first after "
            "rueda.init(), without any other collective in between. It also brings the others' state, so that "
            "broadcast_parameters() and the like are not needed"
        )


def takes_part(process_set: ProcessSet) -> bool:
    """Whether this process is a member. It is a member of the global set before init() as well."""
    require_process_set(process_set)
    return process_set.process_set_id == 0 or process_set.included()


def adopt_process_sets(process_sets: Sequence[ProcessSet], count: int | None = None) -> None:
    """Gives the sets that the other ranks passed to init() their numbers here, in a process that has joined them.

    ``count``: how many those were, if known. Raises :class:`rueda.InvalidArgumentError` if the others began with
    different sets.
    """
    if count is not None and len(process_sets) != count:
        raise InvalidArgumentError(
            f"init(process_sets=...): the ranks of this job began with {count} sets, and this process has "
            f"{len(process_sets)}"
        )
    there = _native.process_set_ids()
    for number, process_set in enumerate(process_sets, 1):
        if number not in there:
            continue  # it has been removed since
        if not _native.was_added_as(number, process_set.ranks):
            raise InvalidArgumentError(
                f"init(process_sets=...): the ranks of this job began with another set instead of "
                f"{process_set!r}"
            )
        process_set.process_set_id = number
        process_set._ranks = _native.ranks_of(number)
        _added.add(process_set)


def follow_process_sets(previous_ranks: list[int]) -> None:
    """Continues each set with its remaining members in a world that has followed another.

    ``previous_ranks``: each rank's rank in the previous world.
    """
    there = _native.process_set_ids()
    for process_set in list(_added):
        number = process_set.process_set_id
        if number in there:
            process_set._ranks = _native.ranks_of(number)
            continue
        # The set is gone, and using it raises an error; it can be added again.
        before = process_set.ranks
        process_set._ranks = [rank for rank, was in enumerate(previous_ranks) if was in before]


def end_process_sets() -> None:
    """Ends all sets; every rank must do so first in a world that it has just entered."""
    _native.end_process_sets()
    forget_process_sets()


def forget_process_sets() -> None:
    """Takes the number from every set, since it has become invalid."""
    for process_set in list(_added):
        process_set.process_set_id = None
    _added.clear()
