"""Rank queries in processes forked from a rank, such as data loader workers.

Such a child is not a rank, and its operations raise. Its queries return the parent's values, as in Horovod: scripts
call ``hvd.rank()`` there to seed random numbers or to choose the files that a worker reads.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TypeVar

from rueda import lifecycle
from rueda.errors import RuedaError

__all__ = ["answering_in_children", "is_child", "known_rank"]

T = TypeVar("T")

_QUESTIONS: tuple[Callable[[], object], ...] = (
    lifecycle.cross_rank,
    lifecycle.cross_size,
    lifecycle.is_homogeneous,
    lifecycle.local_rank,
    lifecycle.local_size,
    lifecycle.rank,
    lifecycle.size,
)

# Answers by function name: those that a child forked now would inherit, and those that this process inherited.
_told: dict[str, object] = {}
_inherited: dict[str, object] = {}


def is_child() -> bool:
    """Whether this process was forked from a rank."""
    return bool(_inherited)


def known_rank() -> int:
    """The rank of this process, or its parent's if it was forked. Raises :class:`rueda.NotInitializedError`."""
    return answering_in_children(lifecycle.rank)()


def answering_in_children(ask: Callable[[], T]) -> Callable[[], T]:
    """Wraps ``ask``, a rueda.lifecycle query; a forked child returns its parent's answer at the fork."""

    @functools.wraps(ask)
    def answer() -> T:
        return _inherited[ask.__name__] if _inherited else ask()  # type: ignore[return-value]

    return answer


def _remember() -> None:
    _told.clear()
    _told.update(_inherited)
    if lifecycle.is_initialized():
        try:
            _told.update({ask.__name__: ask() for ask in _QUESTIONS})
        except RuedaError:  # another thread has just left the world
            _told.clear()


def _inherit() -> None:
    _inherited.update(_told)


os.register_at_fork(before=_remember, after_in_child=_inherit)
