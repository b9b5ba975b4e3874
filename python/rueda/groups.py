"""Numbers of process sets that only their members know."""

from __future__ import annotations

from rueda import _native, lifecycle

__all__ = ["number_in", "taken_slots"]

_formed = 0


def taken_slots() -> list[int]:
    """The slots in which this rank is a member of such a set."""
    first = _native.first_formed_set
    return [_native.group_slot(number) for number in _native.process_set_ids() if number >= first]


def number_in(slot: int) -> int:
    """A number that no rank has given, or will give, to another set of this world.

    Raises :class:`rueda.InvalidArgumentError` when all numbers are used up.
    """
    global _formed
    generation = _formed * lifecycle.size() + lifecycle.rank()
    _formed += 1
    return _native.group_number(slot, generation)
