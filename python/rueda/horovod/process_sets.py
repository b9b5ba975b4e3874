"""Process sets with Horovod's interface: rank and size of a set are ``None`` until it is added."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rueda.process_sets
from rueda import _native
from rueda.errors import InvalidArgumentError
from rueda.horovod.exceptions import translated
from rueda.horovod.forks import known_rank

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet(rueda.process_sets.ProcessSet):
    """A set of ranks, for ``init(process_sets=[...])`` or :func:`add_process_set`.

    ``ranks_or_comm``: world ranks, or an mpi4py communicator, which every process that calls ``init()`` must hold
    (its ranks are found when the set is added). Raises ``ValueError`` for anything else.

    Example::

        >>> even = hvd.ProcessSet(range(0, 4, 2))
        >>> even.ranks, even.size()  # before it is added
        ([0, 2], None)
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        if hasattr(ranks_or_comm, "Get_rank"):
            super().__init__(())
            self.mpi_comm: Any = ranks_or_comm
            self._known = False
            return
        wrong = "a ProcessSet takes a list of ranks or a communicator of mpi4py"
        if isinstance(ranks_or_comm, str) or not isinstance(ranks_or_comm, Iterable):
            raise ValueError(f"{wrong}, not {ranks_or_comm!r}")
        ranks = list(ranks_or_comm)
        if not all(isinstance(rank, int) for rank in ranks):
            raise ValueError(f"{wrong}, not {ranks!r}")
        super().__init__(ranks)
        self.mpi_comm = None
        self._known = True

    @property
    def ranks(self) -> list[int] | None:  # type: ignore[override]  # as Horovod has it
        """The world ranks, sorted; ``None`` for a communicator whose ranks are not known yet."""
        if not self._known or (self._ranks is None and not _native.is_initialized()):
            return None
        return super().ranks

    def learn_ranks(self, ranks: Iterable[int]) -> None:
        """Sets the world ranks of the communicator."""
        self._ranks = sorted(ranks)
        self._known = True

    def size(self) -> int | None:  # type: ignore[override]  # as Horovod has it
        """Number of members; ``None`` before the set has been added."""
        if self.process_set_id is None or not _native.is_initialized():
            return None
        return super().size()

    def rank(self) -> int | None:  # type: ignore[override]  # as Horovod has it
        """This process's rank within the set; ``None`` before the set has been added.

        Raises ``ValueError`` if this process is not a member.
        """
        if self.process_set_id is None or not _native.is_initialized():
            return None
        number = super().rank()
        if number < 0:
            raise ValueError(f"rank {_native.rank()} is not part of {self}")
        return number

    @translated
    def included(self) -> bool | None:  # type: ignore[override]  # as Horovod has it
        """Whether this process is a member; ``None`` if the set's ranks are not known."""
        ranks = self.ranks
        return None if ranks is None else known_rank() in ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


def _make_global() -> ProcessSet:
    process_set = ProcessSet(())
    process_set._ranks = None  # follows the world
    process_set.process_set_id = 0
    return process_set


global_process_set: ProcessSet = _make_global()
"""All ranks."""


@translated
def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Adds a set after ``init()`` and returns it; every rank of the world must call this, members or not.

    ``HOROVOD_DYNAMIC_PROCESS_SETS`` need not be set. Raises ``ValueError`` on every rank if a set of the same ranks
    exists, or if some rank gives a communicator, which only ``init(process_sets=[...])`` can add, or anything else.

    Example::

        >>> if hvd.size() > 1:
        ...     pair = hvd.add_process_set([0, 1])
    """
    rueda.process_sets.require_arrival()
    try:
        process_set = _new_set(process_set)
    except Exception as error:  # whatever the ranks' own __iter__ raises
        rueda.process_sets.refuse_change("add_process_set()", error)
    rueda.process_sets.add_process_set(process_set)
    return process_set


def _new_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.ranks is None:
        raise InvalidArgumentError(
            "a process set given as a communicator can be added by init(process_sets=[...]) only"
        )
    if process_set.ranks in (_native.ranks_of(each) for each in _native.process_set_ids()):
        raise InvalidArgumentError(f"there is a process set of these ranks already: {process_set}")
    return process_set


@translated
def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set; every rank of the world must call this. Returns whether the set was removed.

    Example::

        >>> hvd.remove_process_set(hvd.global_process_set)
        False
    """
    is_set = isinstance(process_set, rueda.process_sets.ProcessSet)
    if is_set and process_set.process_set_id in (None, 0):
        return False
    rueda.process_sets.remove_process_set(process_set)
    return True
