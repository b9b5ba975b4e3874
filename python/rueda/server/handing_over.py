"""How a table goes on after ranks were lost: those that are left put what they hold into a new one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError, PeerLostError
from rueda.exchanges import barrier
from rueda.handles import Handle
from rueda.objects import allgather_object
from rueda.process_sets import ProcessSet
from rueda.server.part import Part
from rueda.submission import refuse

if TYPE_CHECKING:
    from rueda.server.tables import OpenTable

__all__ = ["hand_over"]


def hand_over(
    old: OpenTable,
    new: OpenTable,
    put: Callable[[Part], Sequence[Handle[None]]],
    process_set: ProcessSet,
) -> None:
    """Of each part, a rank that has the newest copy puts it into ``new``. Collective over ``process_set``.

    This rank's clock goes on from the most that an owner that is left has counted, or was finished.

    Raises :class:`rueda.PeerLostError` on every rank where nobody holds some part any more, and
    :class:`rueda.InvalidArgumentError` where a rank cannot put what it holds, with what that rank says; ``new`` is
    closed then.
    """
    parts = old.parts()
    name = f"rueda.table '{old.name}' is handed over"
    # Which of its own ranks each is: of copies that are equally new, the owner's own.
    told = allgather_object(
        ([(part.owner, part.version, part.is_own) for part in parts], old.clocks()),
        name,
        process_set=process_set,
    )
    held = [copies for copies, _ in told]
    newest: dict[int, tuple[int, bool, int]] = {}  # of each owner; at the end minus the new rank
    for rank, copies in enumerate(held):
        for owner, version, is_own in copies:
            copy = (version, is_own, -rank)
            newest[owner] = max(newest.get(owner, copy), copy)
    lost = sorted(set(range(old.owners)) - set(newest))
    old.abandon()
    if lost:
        new.close()
        raise PeerLostError(
            f"table '{old.name}': nobody is left who holds the part of rank {lost[0]}: with "
            f"replicated=True it goes on without one rank, otherwise put it from a checkpoint"
        )
    mine = [
        part
        for part in parts
        if newest[part.owner] == (part.version, part.is_own, -process_set.rank())
    ]
    try:
        _put(old.name, mine, put, name, process_set)
        new.go_on(max(clocks[old.rank] for _, clocks in told))
        barrier(process_set, name)
    except InvalidArgumentError:
        new.close()
        raise


def _put(
    table: str,
    parts: Sequence[Part],
    put: Callable[[Part], Sequence[Handle[None]]],
    name: str,
    process_set: ProcessSet,
) -> None:
    """What goes wrong on this rank alone is told where the others wait for it."""
    try:
        for part in parts:
            for handle in put(part):
                handle.result()
    except Exception as error:
        why = f"table '{table}': rank {process_set.rank()} cannot put what it holds: {error}"
        refuse(name, process_set, Refusal(why)).result()
