"""Exchanges in pairs of ranks, of which one may be late."""

from __future__ import annotations

import logging
from collections import Counter

import torch

from rueda.lifecycle import rank, world_number
from rueda.torch.strategies.named import Named, copied
from rueda.torch.strategies.replica import Meeting, Replica

__all__ = ["Meetings"]

_log = logging.getLogger("rueda")

# The name of a message's own number among the tensors that travel with it.
_ROUND = "round"


class Meetings:
    """What this rank swaps with others; who does not come in time is left alone until it has come.

    Two ranks swap one message of each at a time: the k-th of one is for the k-th of the other, whenever they come to
    it. So what a rank has sent to one that was away is there once that one is back, and nothing is in between. A rank
    that was away is told with each message in which round the other is, and goes on with that round: who meets whom
    follows from the round, so it would miss the others for good otherwise.

    All of that is of one world. Where another follows, with other numbers of the ranks, what was on its way is gone,
    and meetings are counted anew; rounds go on.
    """

    def __init__(self) -> None:
        self._world = world_number()
        self._begun: Counter[int] = Counter()  # meetings, by partner
        self._missed: dict[int, Meeting] = {}  # that the partner has not come to yet
        self.ahead = 0  # rounds that others had done while this rank was away

    def swap(
        self, replica: Replica, tensors: Named, partner: int, number: int, timeout: float
    ) -> dict[str, torch.Tensor] | None:
        """The partner's tensors of the same names; ``None`` where it does not come. ``number``: of the round."""
        self._follow_world()
        missed = self._missed.get(partner)
        if missed is not None:
            if not missed.wait(0):
                return None
            behind = self.ahead
            self._take(self._missed.pop(partner), number)  # of a round that is over
            number += self.ahead - behind
        meeting = self._begin(replica, tensors, partner, number)
        if meeting.wait(timeout):
            return self._take(meeting, number)
        self._missed[partner] = meeting
        _log.warning(
            "rank %d goes on without rank %d, which has not come to round %d within %g s",
            rank(),
            partner,
            number,
            timeout,
        )
        return None

    def settle(self, replica: Replica, tensors: Named) -> None:
        """Ends all meetings, so that no message is on its way, and rounds are counted alike from now on.

        Collective; all ranks then have taken as many steps, or take them up from the same state. ``tensors`` as for
        swap().
        """
        self._follow_world()
        ranks = replica.process_set.ranks
        own = torch.tensor([self._begun[each] for each in ranks], device="cpu")
        begun = replica.gather(own, "meetings").view(len(ranks), len(ranks))
        left = list(self._missed.values())
        for other, with_this in zip(ranks, begun[:, ranks.index(rank())].tolist(), strict=True):
            if with_this > self._begun[other]:
                left.append(self._begin(replica, tensors, other, 0))
        for meeting in left:
            meeting.result()
        self._missed.clear()
        self.ahead = 0

    def _follow_world(self) -> None:
        """Forgets what was on its way in a world that is gone: it has ended with that, by the error that told so."""
        if self._world != world_number():
            self._world = world_number()
            self._begun.clear()
            self._missed.clear()

    def _take(self, meeting: Meeting, number: int) -> dict[str, torch.Tensor] | None:
        """What has come; ``None`` where that is of an earlier round, since its sender is late."""
        theirs = meeting.result()
        further = int(theirs.pop(_ROUND)) - number
        self.ahead += max(0, further)
        return theirs if further >= 0 else None

    def _begin(self, replica: Replica, tensors: Named, partner: int, number: int) -> Meeting:
        self._begun[partner] += 1
        # Copies: the tensors change before a partner that is late has fetched them.
        ours = copied(tensors) | {_ROUND: torch.tensor(number, device="cpu")}
        return replica.meet(ours, partner, "meetings")
