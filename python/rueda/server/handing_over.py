"""Restores a table after ranks were lost: the remaining ranks put what they hold into a new one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rueda.adapter import Refusal
from rueda.errors import InvalidArgumentError, MismatchError, PeerLostError
from rueda.exchanges import barrier
from rueda.handles import Handle
from rueda.lifecycle import rank as world_rank
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
    """For each part, a rank with the newest copy puts it into ``new``. Collective over ``process_set``.

    This rank's clock continues from the highest value that a remaining owner has counted, or stays finished.

    Raises :class:`rueda.PeerLostError` on every rank if nobody holds some part any more,
    :class:`rueda.MismatchError` if ``old`` is not the same table on all of them, and
    :class:`rueda.InvalidArgumentError` with a rank's reason if that rank cannot put what it holds; ``new`` is then
    closed.
    """
    parts = old.parts()
    name = f"rueda.table '{old.name}' is handed over"
    # is_own: among equally new copies, the owner's own is preferred.
    told = allgather_object(
        (
            f"{old.owners} owners, restored() {old.generation} times",
            [(part.owner, part.version, part.is_own) for part in parts],
            old.clocks(),
        ),
        name,
        process_set=process_set,
    )
    _agree(old, new, [which for which, _, _ in told], process_set)
    # Known to all ranks before any of them returns, in case one more is lost meanwhile.
    new.generation = old.generation + 1
    held = [copies for _, copies, _ in told]
    newest: dict[int, tuple[int, bool, int]] = {}  # for each owner; ends with the negated new rank
    for rank, copies in enumerate(held):
        for owner, version, is_own in copies:
            copy = (version, is_own, -rank)
            newest[owner] = max(newest.get(owner, copy), copy)
    lost = sorted(set(range(old.owners)) - set(newest))
    old.abandon()
    if lost:
        new.close()
        raise PeerLostError(
            f"table '{old.name}': no remaining rank holds the part of rank {old.world_ranks[lost[0]]}: with "
            f"replicated=True a table survives the loss of one rank, otherwise put() it from a checkpoint"
        )
    mine = [
        part
        for part in parts
        if newest[part.owner] == (part.version, part.is_own, -process_set.rank())
    ]
    try:
        _put(old.name, mine, put, name, process_set)
        new.go_on(max(clocks[old.rank] for _, _, clocks in told))
        barrier(process_set, name)
    except InvalidArgumentError:
        new.close()
        raise


def _agree(old: OpenTable, new: OpenTable, which: Sequence[str], process_set: ProcessSet) -> None:
    """Raises MismatchError on all ranks, and closes ``new``, unless all hand over the same table.

    They do not if a rank was lost at the end of a hand-over, when only some had learned that it was complete.
    """
    ranks: dict[str, list[int]] = {}
    for each, rank in zip(which, process_set.ranks, strict=True):
        ranks.setdefault(each, []).append(rank)
    if len(ranks) == 1:
        return
    old.abandon()
    new.close()
    values = tuple(sorted(ranks, key=lambda value: -len(ranks[value])))
    told = "; ".join(f"{value}, on {_ranks_text(ranks[value])}" for value in values)
    raise MismatchError(
        f"table '{old.name}' differs between ranks: {told}: put() what it had into a new one, from a checkpoint",
        tensor=old.name,
        field="table",
        values=values,
    )


def _ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _put(
    table: str,
    parts: Sequence[Part],
    put: Callable[[Part], Sequence[Handle[None]]],
    name: str,
    process_set: ProcessSet,
) -> None:
    """Puts parts; an error on this rank alone is reported to the others where they wait for it."""
    try:
        for part in parts:
            for handle in put(part):
                handle.result()
    except Exception as error:
        why = f"table '{table}': rank {world_rank()} cannot put what it holds: {error}"
        refuse(name, process_set, Refusal(why)).result()
