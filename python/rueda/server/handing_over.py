"""How a table goes on after ranks were lost: those that are left put what they hold into a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rueda.errors import PeerLostError
from rueda.exchanges import barrier
from rueda.handles import Handle
from rueda.objects import allgather_object
from rueda.process_sets import ProcessSet
from rueda.server.part import Part

if TYPE_CHECKING:
    from rueda.server.tables import OpenTable

__all__ = ["hand_over"]


def hand_over(old: OpenTable, put: Callable[[Part], Handle[None]], process_set: ProcessSet) -> None:
    """Of each part, the rank that has the newest copy puts it. Collective over ``process_set``.

    Raises :class:`rueda.PeerLostError` on every rank where nobody holds some part any more.
    """
    parts = old.parts()
    name = f"rueda.table '{old.name}' is handed over"
    held = allgather_object(
        [(part.owner, part.version) for part in parts], name, process_set=process_set
    )
    newest: dict[
        int, tuple[int, int]
    ] = {}  # of each owner: version, and minus the rank that has it
    for rank, copies in enumerate(held):
        for owner, version in copies:
            newest[owner] = max(newest.get(owner, (version, -rank)), (version, -rank))
    lost = sorted(set(range(old.owners)) - set(newest))
    if lost:
        raise PeerLostError(
            f"table '{old.name}': nobody is left who holds the part of rank {lost[0]}: with "
            f"replicated=True it goes on without one rank, otherwise put it from a checkpoint"
        )
    for part in parts:
        if newest[part.owner] == (part.version, -process_set.rank()):
            put(part).result()
    barrier(process_set, name)
