"""A member's side of bringing newcomers up to date while the members keep training.

Each member sends a share of the state as it was before some step, copied, and then the same share of the gradients of
each later optimizer step. A separate thread does the sending.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from rueda.elastic.private_link import PrivateLink
from rueda.torch.fingerprints import bits_of
from rueda.torch.replay import Outset, outset_of, taken_by
from rueda.torch.state_pieces import TensorState, cut, deal, digest

__all__ = ["Feed", "join_shares", "share_of"]

# A newcomer is near if everything that it has not processed is younger than this, or is a single step; seconds.
_NEAR = 0.1
# Limit for steps waiting to be sent, in multiples of the state's bytes.
_MAX_WAITING = 4
_ENDING = 20.0
_CONFIRMATIONS_AHEAD = 16


def share_of(contents: Sequence[torch.Tensor], member: int, members: int) -> torch.Tensor:
    """A member's share of these bytes, copied into one tensor."""
    pieces = cut(content.numel() for content in contents)
    owners = deal(pieces, members)
    own = [piece for piece, owner in zip(pieces, owners, strict=True) if owner == member]
    share = torch.empty(
        sum(piece.end - piece.begin for piece in own), dtype=torch.uint8, device="cpu"
    )
    begin = 0
    for piece in own:
        length = piece.end - piece.begin
        share[begin : begin + length].copy_(piece.of(contents))
        begin += length
    return share


def join_shares(contents: Sequence[torch.Tensor], shares: Sequence[torch.Tensor]) -> None:
    """The inverse for all members: fills ``contents``. Raises ValueError for shares of the wrong size."""
    pieces = cut(content.numel() for content in contents)
    ends = [0] * len(shares)
    for piece, owner in zip(pieces, deal(pieces, len(shares)), strict=True):
        length = piece.end - piece.begin
        piece.of(contents).copy_(shares[owner][ends[owner] : ends[owner] + length])
        ends[owner] += length
    if ends != [share.numel() for share in shares]:
        raise ValueError("a share does not have the expected number of bytes")


class Feed:
    """Feeds the processes that are about to join.

    ``rank`` of ``members``: of this process. ``joiners``: how many processes join. ``address`` and ``listener``, which
    it closes: where all of them meet. Starts immediately with the current state; the optimizer's next steps follow
    automatically until :meth:`end` or :meth:`release`.
    """

    def __init__(
        self,
        state: TensorState,
        optimizer: torch.optim.Optimizer,
        rank: int,
        members: int,
        joiners: int,
        address: str,
        listener: socket.socket | None,
    ) -> None:
        self._member, self._members = rank, members
        self._targets = list(range(members, members + joiners))
        self._link: PrivateLink | None = None
        self._failure = ""
        self._is_over = False
        self._has_ended = False
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Any, torch.Tensor] | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._pushed = 0
        self._pushed_at: deque[tuple[int, float]] = deque()  # messages not confirmed yet
        self._confirmed = dict.fromkeys(self._targets, 0)
        self._confirming: dict[int, deque[Any]] = {each: deque() for each in self._targets}
        self._max_waiting = _MAX_WAITING * max(sum(state.sizes()) // members, 1 << 20)
        # The thread copies the state, which does not change until the optimizer takes a step.
        self._copied = threading.Event()
        self._pushed_at.append((1, time.monotonic()))
        self._pushed = 1
        self._thread = threading.Thread(
            target=self._run,
            args=(state, outset_of(state, optimizer), address, listener),
            name="rueda-feed",
            daemon=True,
        )
        self._thread.start()
        self._hook = optimizer.register_step_pre_hook(self._take_step)

    # --- Called by the training

    def _take_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Called before the optimizer takes a step."""
        self._copied.wait()
        if self._failure:
            return
        try:
            step, gradients = taken_by(optimizer)
        except ValueError as error:
            self._failure = str(error)
            return
        share = share_of([bits_of(each) for each in gradients], self._member, self._members)
        if self._waiting_bytes + share.numel() > self._max_waiting:
            self._failure = "steps are taken more quickly than gradients can be sent"
            return
        self._push(step, share)

    def _push(self, header: Any, share: torch.Tensor) -> None:
        self._pushed += 1
        self._pushed_at.append((self._pushed, time.monotonic()))
        with self._lock:
            self._waiting_bytes += share.numel()
        self._waiting.put((header, share))

    @property
    def failure(self) -> str:
        """Why it is of no use any more; empty while it is."""
        return self._failure

    def is_near(self) -> bool:
        """Whether the newcomers are so close that the members would not wait for them long."""
        if self._link is None or self._failure:
            return False
        try:
            self._take_confirmations(self._link)
        except Exception as error:  # a newcomer is gone: this is the failure
            self._failure = self._failure or str(error)
            return False
        if min(self._confirmed.values()) == 0:  # someone lacks even the state
            return False
        return len(self._pushed_at) <= 1 or time.monotonic() - self._pushed_at[0][1] < _NEAR

    def end(self) -> None:
        """Called when no step follows: the newcomers soon have all of them."""
        self._has_ended = True
        self._hook.remove()
        self._push(None, torch.empty(0, dtype=torch.uint8, device="cpu"))
        self._waiting.put(None)

    def release(self) -> None:
        """Gives up, in any state; after end(), only if that has failed."""
        self._hook.remove()
        if self._has_ended and not self._failure:
            return
        self._is_over = True
        self._failure = self._failure or "given up"
        self._waiting.put(None)
        link = self._link
        if link is not None:
            link.close(self._failure)

    def is_over(self) -> bool:
        """Whether its thread has ended."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """After release(): waits until its thread has ended."""
        self._thread.join(_ENDING)

    # --- Run by its thread

    def _run(
        self, state: TensorState, outset: Outset, address: str, listener: socket.socket | None
    ) -> None:
        link = None
        is_sent = False
        try:
            try:
                share = share_of(state.contents(), self._member, self._members)
            finally:
                self._copied.set()
            link = self._meet(address, listener)
            self._link = link
            if not self._is_over:
                link.send((outset, digest(share)), share.numpy(), self._targets)
            del share
            while not self._is_over and (entry := self._waiting.get()) is not None:
                header, share = entry
                link.send((header, digest(share)), share.numpy(), self._targets)
                with self._lock:
                    self._waiting_bytes -= share.numel()
            is_sent = True
            self._await_confirmations(link)
        except Exception as error:  # of any class: the job continues, and checks for it
            if not is_sent:  # a newcomer that has everything leaves
                self._failure = self._failure or f"{type(error).__name__}: {error}"
        finally:
            if link is not None:
                link.close(self._failure)

    def _meet(self, address: str, listener: socket.socket | None) -> PrivateLink:
        size = self._members + len(self._targets)
        try:
            descriptor = -1 if listener is None else listener.fileno()
            return PrivateLink(self._member, size, address, descriptor, self._members)
        finally:
            if listener is not None:
                listener.close()

    def _await_confirmations(self, link: PrivateLink) -> None:
        deadline = time.monotonic() + _ENDING
        while self._pushed_at and not self._failure and time.monotonic() < deadline:
            self._take_confirmations(link)
            time.sleep(0.002)

    def _take_confirmations(self, link: PrivateLink) -> None:
        for target in self._targets:
            expected = self._confirming[target]
            # Several are requested ahead: whether one has arrived is known only some time after the request.
            while len(expected) < _CONFIRMATIONS_AHEAD or expected[0][0].done():
                if len(expected) < _CONFIRMATIONS_AHEAD:
                    expected.append(link.begin_confirmation(target))
                    continue
                handle, count = expected.popleft()
                handle.result()
                self._confirmed[target] = int(count[0])
        least = min(self._confirmed.values())
        while self._pushed_at and self._pushed_at[0][0] <= least:
            self._pushed_at.popleft()
