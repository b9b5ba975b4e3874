"""Brings those who wait to join up to where the members are, in the background, where that is worth while."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from rueda.elastic.changes import Door, have_gone, open_door
from rueda.elastic.shared_state import SharedState
from rueda.lifecycle import rank, size

if TYPE_CHECKING:
    from rueda.torch.state_feed import Feed

__all__ = ["Guidance"]

_log = logging.getLogger("rueda")

# After so many failures newcomers get the state while the others wait.
_MAX_FAILURES = 2
# Between a failure and the next try, in which the launcher tells who is gone; seconds.
_PAUSE = 0.5


class Guidance:
    """What one member knows of it. All members take the same calls at the same step, and come to the same."""

    def __init__(self, state: SharedState, background_bytes: int) -> None:
        self._state = state
        self._background_bytes = background_bytes
        self._door: Door | None = None
        self._feed: Feed | None = None
        self._ended: list[Feed] = []  # whose threads may still be at work
        self._failures = 0
        self._not_before = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether newcomers are being brought up."""
        return self._door is not None

    def has_failed(self) -> bool:
        """Whether this member's part is of no use any more, also as a newcomer has ended before it came to follow."""
        if self._feed is None or self._door is None:
            return False
        return bool(self._feed.failure) or have_gone(self._door.joiners)

    def is_far(self) -> bool:
        """Whether the newcomers have not come near, as far as this member can tell."""
        return self._feed is not None and not self._feed.is_near()

    def begin(self) -> bool:
        """Begins where that is worth while; collective. True where those who wait are not to be let in now."""
        tensors = self._state.tensors()
        if tensors is None or sum(tensors.sizes()) < self._background_bytes:
            return False
        from rueda.torch.replay import why_not
        from rueda.torch.state_feed import Feed

        reason = why_not(tensors, self._state.optimizer)
        if reason:
            _log.info("newcomers get the state while the others wait: %s", reason)
            return False
        # Members that have joined since know nothing of what has failed before: rank 0 decides.
        is_hopeless = self._failures >= _MAX_FAILURES
        door = open_door(time.monotonic() >= self._not_before, is_hopeless)
        if door is None:
            self._failures = 0
            return False
        if door.joiners:
            self._door = door
            self._feed = Feed(
                tensors,
                self._state.optimizer,
                rank(),
                size(),
                len(door.joiners),
                door.address,
                door.listener,
            )
        return True

    def end(self) -> list[int]:
        """The newcomers are near: nothing more follows. Returns who they are."""
        assert self._door is not None
        assert self._feed is not None
        self._feed.end()
        self._failures = 0
        return self._door.joiners

    def abort(self) -> None:
        """Nobody is brought up any more; where :meth:`end` was called, what is under way still gets through."""
        if self._feed is None:
            return
        if self._feed.failure:
            _log.info("newcomers cannot follow: %s", self._feed.failure)
            self._failures += 1
            self._not_before = time.monotonic() + _PAUSE
        self._feed.release()
        self._ended = [feed for feed in self._ended if not feed.is_over()] + [self._feed]
        self._feed = self._door = None

    def close(self) -> None:
        """As abort(), and returns once nothing is under way."""
        self.abort()
        for feed in self._ended:
            feed.wait()
        self._ended = []
