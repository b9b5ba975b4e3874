"""A member's side of bringing newcomers up to date while the members keep training.

Each member sends a share of the state as it was before some step, copied, and then a share of the gradients of each
later optimizer step. A separate thread does the sending. Gradients that a DistributedOptimizer reduces are sent while
later ones are still being reduced; otherwise newcomers would always be most of a step behind, for which all would then
wait. If the program changes them afterwards, as by clipping, they are sent once more, and from then on none are sent
before the optimizer is called.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rueda.elastic.private_link import PrivateLink
from rueda.torch.fingerprints import bits_of, numbers_of
from rueda.torch.replay import Outset, Taken, outset_of, taken_by
from rueda.torch.state_messages import Ahead, Outline, Part, Rest, part_bounds
from rueda.torch.state_pieces import TensorState, digest
from rueda.torch.state_shares import divide_step, share_of

if TYPE_CHECKING:
    from rueda.torch.gradients import GradientReducer

__all__ = ["Feed"]

# A newcomer is near if everything that it has not processed is younger than this; seconds.
_NEAR = 0.1
# Or if that is at most this part of the newest step; or of that step alone for so many steps.
_NEAR_PART = 0.25
_MAX_BEHIND = 2
# Gradients are sent ahead once there are so many bytes of them.
_AHEAD_BYTES = 4 << 20
# The state goes in parts of about this size, between which members let their own gradients pass.
_PART_BYTES = 4 << 20
# Limit for steps waiting to be sent, in multiples of the state's bytes.
_MAX_WAITING = 4
_ENDING = 20.0
_CONFIRMATIONS_AHEAD = 16


@dataclass(frozen=True)
class _Sent:
    """What was sent ahead: the gradients' fingerprints, the same on all members, so that all decide alike."""

    parameters: tuple[int, ...]
    numbers: list[int]


@dataclass(frozen=True)
class _Message:
    """One that newcomers have not confirmed yet. ``count``: of all messages so far; ``step``: of all steps."""

    count: int
    step: int
    at: float
    size: int


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")


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
        # The step to which each message belongs, its header and its content.
        self._waiting: queue.SimpleQueue[tuple[int, Any, torch.Tensor] | None]
        self._waiting = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._steps = 0  # whose last message has been pushed
        self._step_bytes = 0  # of this step's messages so far
        self._last_step_bytes = 0
        self._behind_since: int | None = None  # the step after which newcomers lacked no other
        self._unconfirmed: deque[_Message] = deque()
        self._confirmed = dict.fromkeys(self._targets, 0)
        self._confirming: dict[int, deque[Any]] = {each: deque() for each in self._targets}
        self._max_waiting = _MAX_WAITING * max(sum(state.sizes()) // members, 1 << 20)
        # None if another optimizer than a DistributedOptimizer without leaves: then nothing is sent ahead.
        self._reducer: GradientReducer | None = getattr(optimizer, "_rueda", None)
        self._sends_ahead = self._reducer is not None
        # The thread copies the state, which does not change until the optimizer takes a step.
        self._copied = threading.Event()
        # One with its description, then its parts: as many from every member.
        self._parts = max(1, sum(state.sizes()) // members // _PART_BYTES)
        self._pushed = self._state_messages = 1 + self._parts
        self._unconfirmed.append(_Message(self._pushed, 0, time.monotonic(), 0))
        self._thread = threading.Thread(
            target=self._run,
            args=(state, outset_of(state, optimizer), address, listener),
            name="rueda-feed",
            daemon=True,
        )
        self._thread.start()
        self._hook = optimizer.register_step_pre_hook(self._take_step)
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        self._numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self._reduced: dict[int, torch.Tensor] = {}  # by parameter: bytes to be sent ahead
        self._sent: list[_Sent] = []  # ahead, in this step
        self._sent_ahead: set[int] = set()  # the parameters in there
        if self._reducer is not None:
            self._reducer.when_reduced = self._take_reduced

    # --- Called by the training

    def _take_reduced(self, parameters: Sequence[torch.Tensor]) -> None:
        """Called when gradients have been reduced; in the same order on all members."""
        if self._failure:
            return
        with self._failing():
            for parameter in parameters:
                self._put_ahead(parameter)
            if sum(each.numel() for each in self._reduced.values()) >= _AHEAD_BYTES:
                self._send_ahead()

    def _put_ahead(self, parameter: torch.Tensor) -> None:
        number, gradient = self._numbers.get(parameter), parameter.grad
        if number is None or number in self._sent_ahead or gradient is None:
            return
        if gradient.layout == torch.strided and gradient.dtype == parameter.dtype:
            self._reduced[number] = bits_of(gradient)

    def _send_ahead(self) -> None:
        ahead = Ahead(tuple(self._reduced))
        contents = list(self._reduced.values())
        self._reduced = {}
        self._push(ahead, share_of(contents, self._member, self._members))
        self._sent.append(_Sent(ahead.parameters, numbers_of(contents)))
        self._sent_ahead.update(ahead.parameters)

    def _take_step(
        self, optimizer: torch.optim.Optimizer, given: Sequence[Any], named: Mapping[str, Any]
    ) -> None:
        """Called before the optimizer takes a step, with the arguments of that call, itself among them."""
        self._copied.wait()
        if self._failure:
            return
        with self._failing():
            if any(each is not None for each in (*given[1:], named.get("closure"))):
                raise ValueError("step() is called with a closure, which computes other gradients")
            self._send_rest(*taken_by(optimizer))

    def _send_rest(self, step: Taken, given: Sequence[torch.Tensor]) -> None:
        own = (number for number, has in enumerate(step.has) if has)
        gradients = {number: bits_of(gradient) for number, gradient in zip(own, given, strict=True)}
        sent, self._sent = self._sent, []
        valid, rest = divide_step([each.parameters for each in sent], step.has)
        batches = {each: [gradients[p] for p in sent[each].parameters] for each in valid}
        changed = [each for each in valid if numbers_of(batches[each]) != sent[each].numbers]
        parts = [[gradients[number] for number in rest], *(batches[each] for each in changed)]
        shares = [share_of(part, self._member, self._members) for part in parts]
        self._push(Rest(step, tuple(changed)), torch.cat(shares) if changed else shares[0])
        self._steps += 1
        self._last_step_bytes, self._step_bytes = self._step_bytes, 0
        self._reduced = {}
        self._sent_ahead.clear()
        if changed or len(valid) < len(sent):
            self._send_no_more_ahead()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """For what is called by the training, which continues: an error ends this attempt to feed newcomers."""
        try:
            yield
        except Exception as error:
            self._failure = str(error) or type(error).__name__

    def _send_no_more_ahead(self) -> None:
        self._sends_ahead = False
        if self._reducer is not None and self._reducer.when_reduced == self._take_reduced:
            self._reducer.when_reduced = None

    def _push(self, header: Any, share: torch.Tensor) -> None:
        size = share.numel()
        if self._waiting_bytes + size > self._max_waiting:
            raise ValueError("steps are taken more quickly than gradients can be sent")
        self._pushed += 1
        self._step_bytes += size
        self._unconfirmed.append(_Message(self._pushed, self._steps, time.monotonic(), size))
        with self._lock:
            self._waiting_bytes += size
        self._waiting.put((self._steps, header, share))

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
        if min(self._confirmed.values()) < self._state_messages:  # someone lacks even the state
            return False
        left = self._unconfirmed
        if not left or time.monotonic() - left[0].at < _NEAR:
            return True
        if left[0].step < self._steps - 1:  # it lacks more than the newest step
            self._behind_since = None
            return False
        if not self._sends_ahead:  # there is no better time
            return True
        if self._behind_since is None:
            self._behind_since = self._steps
        is_little = sum(message.size for message in left) <= _NEAR_PART * self._last_step_bytes
        was_near = left[0].at >= left[-1].at - _NEAR  # when the last of these was sent
        return is_little or was_near or self._steps - self._behind_since >= _MAX_BEHIND

    def end(self) -> None:
        """Called when no step follows: the newcomers soon have all of them."""
        self._has_ended = True
        self._unhook()
        self._push(None, _nothing())
        self._waiting.put(None)

    def release(self) -> None:
        """Gives up, in any state; after end(), only if that has failed."""
        self._unhook()
        if self._has_ended and not self._failure:
            return
        self._is_over = True
        self._failure = self._failure or "given up"
        self._reduced = {}
        self._sent.clear()
        self._drop_waiting()
        self._waiting.put(None)
        link = self._link
        if link is not None:
            link.close(self._failure)

    def _unhook(self) -> None:
        self._hook.remove()
        self._send_no_more_ahead()

    def is_over(self) -> bool:
        """Whether its thread has ended."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """After release(): waits until its thread has ended."""
        self._thread.join(_ENDING)

    def _drop_waiting(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()

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
            self._send(link, Outline(outset, self._parts), _nothing())
            for number in range(self._parts):
                begin, end = part_bounds(share.numel(), number, self._parts)
                self._let_gradients_pass(self._send(link, Part(number), share[begin:end]))
            del share
            while not self._is_over and (entry := self._waiting.get()) is not None:
                step, header, share = entry
                seconds = self._send(link, header, share)
                if step < self._steps:
                    self._let_gradients_pass(seconds)
                with self._lock:
                    self._waiting_bytes -= share.numel()
            is_sent = True
            self._await_confirmations(link)
        except Exception as error:  # of any class: the job continues, and checks for it
            if not is_sent:  # a newcomer that has everything leaves
                self._failure = self._failure or f"{type(error).__name__}: {error}"
        finally:
            if self._failure:
                self._drop_waiting()
            if link is not None:
                link.close(self._failure)

    def _send(self, link: PrivateLink, header: Any, share: torch.Tensor) -> float:
        """Returns how long it took, in seconds."""
        begin = time.monotonic()
        if not self._is_over:
            link.send((header, digest(share)), share.numpy(), self._targets)
        return time.monotonic() - begin

    def _let_gradients_pass(self, seconds: float) -> None:
        """Leaves half of the time to the members' own gradients while these are being reduced."""
        until = time.monotonic() + seconds
        while self._reducer is not None and self._reducer.is_reducing() and not self._is_over:
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(left, 0.01))

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
        while self._unconfirmed and not self._failure and time.monotonic() < deadline:
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
        while self._unconfirmed and self._unconfirmed[0].count <= least:
            self._unconfirmed.popleft()
