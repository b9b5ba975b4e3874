"""Exchanges in pairs of ranks that tolerate a late partner."""

from __future__ import annotations

import logging
from collections import Counter

import torch

from rueda.lifecycle import rank, world_number
from rueda.torch.strategies.named import Named, copied
from rueda.torch.strategies.replica import Meeting, Replica

__all__ = ["Meetings"]

_log = logging.getLogger("rueda")

# The name of the round number among the tensors of a message.
_ROUND = "round"


class Meetings:
    """This rank's swaps with others; a partner that misses the timeout is skipped until it has caught up.

    Two ranks swap one message at a time: the k-th message of one matches the k-th of the other, whenever each sends
    it. So a rank that was away finds the message sent to it when it is back, and no other before it. Each message
    carries its sender's round, and a rank that was away continues from that round: partners depend on the round, so it
    would otherwise miss them forever.

    This state belongs to one world. In the next world, which renumbers ranks, messages in flight are gone and meetings
    are counted from zero; rounds continue.
    """

    def __init__(self) -> None:
        self._world = world_number()
        self._begun: Counter[int] = Counter()  # meetings begun, by partner
        self._missed: dict[int, Meeting] = {}  # meetings yet to be joined, by partner
        self.ahead = 0  # rounds that others had completed while this rank was away

    def swap(
        self, replica: Replica, tensors: Named, partner: int, number: int, timeout: float
    ) -> dict[str, torch.Tensor] | None:
        """The partner's tensors of the same names, or ``None`` if it is late. ``number``: the round's number."""
        self._follow_world()
        missed = self._missed.get(partner)
        if missed is not None:
            if not missed.wait(0):
                return None
            behind = self.ahead
            self._take(self._missed.pop(partner), number)  # that round is over
            number += self.ahead - behind
        meeting = self._begin(replica, tensors, partner, number)
        if meeting.wait(timeout):
            return self._take(meeting, number)
        self._missed[partner] = meeting
        _log.warning(
            "rank %d goes on without rank %d, which has not reached round %d within %g s",
            rank(),
            partner,
            number,
            timeout,
        )
        return None

    def settle(self, replica: Replica, tensors: Named) -> None:
        """Completes all meetings, so that no message is in flight, and resets the count of rounds.

        Collective. All ranks must have taken the same number of steps, or continue from the same state. ``tensors``: as
        for swap().
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
        """Discards the messages in flight of a world that has ended: they failed with it."""
        if self._world != world_number():
            self._world = world_number()
            self._begun.clear()
            self._missed.clear()

    def _take(self, meeting: Meeting, number: int) -> dict[str, torch.Tensor] | None:
        """The partner's tensors; ``None`` if they are of an earlier round, since the partner is late."""
        theirs = meeting.result()
        further = int(theirs.pop(_ROUND)) - number
        self.ahead += max(0, further)
        return theirs if further >= 0 else None

    def _begin(self, replica: Replica, tensors: Named, partner: int, number: int) -> Meeting:
        self._begun[partner] += 1
        # Copies, since the tensors may change before a late partner fetches them.
        ours = copied(tensors) | {_ROUND: torch.tensor(number, device="cpu")}
        return replica.meet(ours, partner, "meetings")
