"""The messages from members to processes that are about to join: see state_feed.py and state_follower.py.

Each is the header of a member's bytes. All members send the same headers in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

from rueda.torch.replay import Outset, Taken

__all__ = ["Ahead", "Outline", "Part", "Rest", "part_bounds"]


@dataclass(frozen=True)
class Outline:
    """Comes first, without bytes. ``parts``: the number of :class:`Part` messages that follow."""

    outset: Outset
    parts: int


@dataclass(frozen=True)
class Part:
    """Of the member's share of the state: the bytes within :func:`part_bounds`."""

    number: int


@dataclass(frozen=True)
class Ahead:
    """The member's share of gradients that are sent before the optimizer is called.

    ``parameters``: whose, by number in the optimizer's order.
    """

    parameters: tuple[int, ...]


@dataclass(frozen=True)
class Rest:
    """A step of the optimizer, with the member's share of the gradients that no :class:`Ahead` had.

    See :func:`rueda.torch.state_shares.divide_step`. ``changed``: numbers of the step's ``Ahead`` messages whose
    gradients have changed since, in order; the member's share of the new ones follows.
    """

    step: Taken
    changed: tuple[int, ...]


def part_bounds(size: int, number: int, parts: int) -> tuple[int, int]:
    """Where a part of ``size`` bytes begins and ends."""
    return size * number // parts, size * (number + 1) // parts
