"""What processes that a rank has forked, such as a data loader's workers, know of it.

Such a child is no rank, and its operations raise. Horovod answers there who the parent is, and scripts rely on it: they
seed random numbers by ``hvd.rank()``, or choose the files that a worker reads.
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

# Of the process, by the functions' names: what it would tell a child now, and what it was told as one.
_told: dict[str, object] = {}
_inherited: dict[str, object] = {}


def is_child() -> bool:
    """Whether this process was forked off a rank."""
    return bool(_inherited)


def known_rank() -> int:
    """The rank of this process, or of the one that it was forked off. Raises :class:`rueda.NotInitializedError`."""
    return answering_in_children(lifecycle.rank)()


def answering_in_children(ask: Callable[[], T]) -> Callable[[], T]:
    """``ask``, one of the functions of rueda.lifecycle; in a child the answer is its parent's at the fork."""

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
