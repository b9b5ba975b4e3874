"""Brings processes that wait to join up to date in the background, if that is worthwhile."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from rueda.elastic.changes import Door, are_absent, open_door
from rueda.elastic.shared_state import SharedState
from rueda.lifecycle import rank, size

if TYPE_CHECKING:
    from rueda.torch.state_feed import Feed

__all__ = ["Guidance"]

_log = logging.getLogger("rueda")

# After this many failures, newcomers get the state while the others wait.
_MAX_FAILURES = 2
# Pause between a failure and the next attempt, in which the launcher reports who is gone; seconds.
_PAUSE = 0.5


class Guidance:
    """One member's view of the process. All members make the same calls at the same step, with the same results."""

    def __init__(self, state: SharedState, background_bytes: int) -> None:
        self._state = state
        self._background_bytes = background_bytes
        self._door: Door | None = None
        self._feed: Feed | None = None
        self._ended: list[Feed] = []  # whose threads may still be running
        self._failures = 0
        self._not_before = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether newcomers are being brought up to date."""
        return self._door is not None

    def has_failed(self) -> bool:
        """Whether this member's part has failed, or a newcomer has ended or does not answer."""
        if self._feed is None or self._door is None:
            return False
        return bool(self._feed.failure) or are_absent(self._door.joiners)

    def is_far(self) -> bool:
        """Whether the newcomers have not come near, as far as this member knows."""
        return self._feed is not None and not self._feed.is_near()

    def begin(self) -> bool:
        """Starts if that is worthwhile; collective. True if the waiting processes must not be admitted yet."""
        tensors = self._state.tensors()
        if tensors is None or sum(tensors.sizes()) < self._background_bytes:
            return False
        from rueda.torch.replay import why_not
        from rueda.torch.state_feed import Feed

        reason = why_not(tensors, self._state.optimizer)
        if reason:
            _log.info("newcomers get the state while the others wait: %s", reason)
            return False
        # Members that have joined since do not know of earlier failures: rank 0 decides.
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
        """Called when the newcomers are near: nothing more follows. Returns their numbers."""
        assert self._door is not None
        assert self._feed is not None
        self._feed.end()
        self._failures = 0
        return self._door.joiners

    def abort(self) -> None:
        """Stops bringing newcomers up to date; after :meth:`end`, data in flight is still delivered."""
        if self._feed is None:
            return
        if self._feed.failure:
            _log.info("newcomers cannot get the state in the background: %s", self._feed.failure)
            self._failures += 1
            self._not_before = time.monotonic() + _PAUSE
        self._feed.release()
        self._ended = [feed for feed in self._ended if not feed.is_over()] + [self._feed]
        self._feed = self._door = None

    def close(self) -> None:
        """Like abort(), but returns only once its threads have ended."""
        self.abort()
        for feed in self._ended:
            feed.wait()
        self._ended = []
