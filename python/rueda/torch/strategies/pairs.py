"""The choice of partners for exchanges in pairs of ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence

__all__ = ["partner_in"]


def partner_in(round_number: int, ranks: Sequence[int], rank: int, seed: int) -> int | None:
    """The partner of a rank in a round; ``None`` for the unpaired rank of an odd number.

    Every rank computes the same pairs, drawn at random for each round, and is in at most one of them. So no rank waits
    for one that waits for a third: there is no cycle, and no deadlock.

    Example::

        >>> from rueda.torch.strategies.pairs import partner_in
        >>> partners = [partner_in(3, [0, 1, 2, 3], rank, seed=0) for rank in range(4)]
        >>> [partners[partner] for partner in partners]
        [0, 1, 2, 3]
    """
    order = list(ranks)
    random.Random(f"{seed}/{round_number}").shuffle(order)
    place = order.index(rank) ^ 1
    return order[place] if place < len(order) else None
