"""A training loop that continues whoever comes and goes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any

from rueda.arguments import whole_number
from rueda.elastic.changes import change, part_with, wanted
from rueda.elastic.guidance import Guidance
from rueda.elastic.joining import came_late, take_received
from rueda.elastic.loops import (
    STEPS,
    Loop,
    Position,
    begin_loop,
    current_place,
    note_arrival,
    passes_over,
    position,
)
from rueda.elastic.meeting import Meeting, displaced, meet, state_is_lost
from rueda.elastic.question import Question
from rueda.elastic.shared_state import SharedState, misfits
from rueda.errors import (
    InvalidArgumentError,
    PeerLostError,
    RuedaError,
    ShutdownError,
    error_in,
    note_other_world,
)
from rueda.exchanges import barrier
from rueda.recovery import can_recover, is_loss, recover

__all__ = ["Step", "steps"]

_log = logging.getLogger("rueda")

# Smaller state arrives before a link for it could be opened.
BACKGROUND_BYTES = 16 << 20

# The number of completed steps of a rank that does not have the shared state yet.
_NOTHING = -1

# Errors that may mean a lost rank; the latter if it has ended cleanly: see is_loss().
_LOSSES = (PeerLostError, ShutdownError)


class Step:
    """One step of :func:`steps`: everything that it does goes into ``with step:``.

    ``number``: from 0. It may be repeated if a rank was lost meanwhile.

    Example::

        >>> for step in rueda.elastic.steps(2):
        ...     with step:
        ...         print(step.number)
        0
        1
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.lost: RuedaError | None = None
        self._is_done = False

    def __enter__(self) -> Step:
        self._is_done = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        told = None if error is None else error_in(error)
        if told is not None and is_loss(told):
            self.lost = told
        elif isinstance(told, PeerLostError) and can_recover():
            note_other_world(told)
        return self.lost is not None

    def check(self) -> None:
        """Raises :class:`rueda.InvalidArgumentError` if the loop's body has not entered the step."""
        if not self._is_done:
            raise InvalidArgumentError(
                f"step {self.number} was not entered: write 'for step in rueda.elastic.steps(...): with step: ...'"
            )


def steps(
    total: int,
    *state: Any,
    every: int = 1,
    begin: Callable[[], int] | None = None,
    background_bytes: int = BACKGROUND_BYTES,
) -> Iterator[Step]:
    """The steps of a training run in which ranks may be lost and others may join; no step is lost or done twice.

    ``total``: the number of steps. ``state``: what all ranks share, objects with ``state_dict()`` and
    ``load_state_dict()``: the model, at most one optimizer, samplers. At the start, every rank gets rank 0's.
    ``every``: newcomers are admitted once in this many steps. Like ``total``, it must be the same on every rank.
    ``begin``: called at the start by the ranks of a job, not by newcomers, for example to load a checkpoint; returns
    the number of the first step, which is 0 without it. ``background_bytes``: models and optimizers of at least this
    size are sent to newcomers while the others keep training; 16 MiB by default.

    When a rank is lost (``rueda run --min-np``), or ends cleanly before the last step, as with ``sys.exit(0)``, the
    others continue in a new world. Ranks that had not finished the step repeat it, unless one of them had taken the
    optimizer's step: then all get its state. Nothing else is rolled back: choose the step's data by its number, and
    call optimizer.step() after everything else that ranks do together. If all ranks were interrupted after it, what
    follows it in that step has not happened, and a warning says so. After the last step the ranks wait for each other,
    so that a rank lost in it is noticed before what follows; what they do together after the loop needs its own
    :func:`rueda.recover`. Handles that are pending when the world changes, and persistent operations, belong to the
    world that has ended: drop them, since waiting for one later ends the loop with its error. Between steps, processes
    that wait to join (``rueda run --max-np``) are admitted, and get the state and the step's number. With
    ``DistributedOptimizer(reproducible=True)``, only the lost ranks' leaves of a repeated step are computed again, and
    the parameters end with the bits of an undisturbed run.

    Collective over the world; a newcomer must call it after its :func:`rueda.init` without any collective in between,
    which would raise :class:`rueda.InvalidArgumentError` there. A script may have several such loops, for example one
    for each epoch: on a newcomer those before the others' loop yield nothing. Within a function with
    :func:`rueda.elastic.run`, newcomers are admitted at its commits only.

    Raises :class:`rueda.PeerLostError` if this rank must stop, see :func:`rueda.recover`;
    :class:`rueda.InvalidArgumentError` if the ranks' states, ``total`` or ``every`` do not match, or if they are in
    different loops: at the start of the job on every rank, later only on the newcomer, without which the others
    continue; and :class:`rueda.InitializationError` if only newcomers that have not received the state are left.

    Example::

        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = rueda.torch.DistributedOptimizer(optimizer, model.named_parameters())
        >>> for step in rueda.elastic.steps(3, model, optimizer):
        ...     with step:
        ...         optimizer.zero_grad()
        ...         model(torch.ones(2, 3)).sum().backward()
        ...         optimizer.step()
        >>> step.number
        2
    """
    total = whole_number("steps(): total", total, 0)
    every = whole_number("steps(): every", every, 1)
    loop = begin_loop(STEPS, _place_of(sys._getframe(1)))
    if passes_over(loop, state):
        return
    course = _Course(loop, state, total, every, begin, background_bytes)
    course.begin()
    try:
        while not course.is_over():
            if not course.prepare():
                continue
            step = Step(course.number)
            yield step
            step.check()
            course.end(step)
    finally:
        course.close()


def _place_of(frame: FrameType) -> str:
    """Where a loop is written."""
    return f"line {frame.f_lineno} of {frame.f_code.co_name}"


def _unlike(meeting: Meeting, source: int) -> dict[int, str]:
    """The ranks that are in another loop than rank ``source``, or in one of other steps, and what differs."""
    length = [(total, every) for *_, total, every in meeting.told]
    others = {
        rank: f"steps({total}, ..., every={every}) on rank {rank}, and steps({length[source][0]}, ..., "
        f"every={length[source][1]}) on rank {source}: both must be the same on every rank, whatever rueda.size() is "
        "there"
        for rank, (total, every) in enumerate(length)
        if (total, every) != length[source]
    }
    return displaced(meeting.positions, source) or others


class _Course:
    """The progress of the training."""

    def __init__(
        self,
        loop: Loop,
        parts: Sequence[Any],
        total: int,
        every: int,
        begin: Callable[[], int] | None,
        background_bytes: int,
    ) -> None:
        self.number = 0
        self._loop = loop
        self._parts = parts
        self._state = SharedState(parts)
        self._guidance = Guidance(self._state, background_bytes)
        self._total = total
        self._every = every
        self._begin = begin
        self._lets_in = not loop.is_in_call  # newcomers; else they come in at the call's commits
        self._question = Question(4)
        self._must_ask = False  # in this step
        self._looked_at = -1  # the step before which it last checked for newcomers
        self._is_newcomer = False  # and has no state yet
        self._others_are_ahead = False  # in the next loop

    def begin(self) -> None:
        """Gives a new rank the others' state; at the start of the job, rank 0's."""
        if self._state.has_leaves:
            self._state.end_step()
        self._is_newcomer = came_late()
        try:
            if not self._is_newcomer:
                self._restore()
            self._share(has_state=False)
            self._looked_at = self.number  # as on the ranks that have admitted this one
        except _LOSSES as error:
            self._recover(error, _NOTHING)

    def prepare(self) -> bool:
        """Admits newcomers. False if a rank was lost meanwhile."""
        try:
            is_new = self._looked_at != self.number
            if self._lets_in and is_new and self.number % self._every == 0:
                self._looked_at = self.number
                self._let_in()
        except _LOSSES as error:
            self._recover(error, self.number)
            return False
        following = self.number + 1
        self._must_ask = self._lets_in and following % self._every == 0 and following < self._total
        self._state.begin_step(self._ask_ahead)
        return True

    def _let_in(self) -> None:
        """Lets waiting processes follow, and admits them once they are near; members leave immediately."""
        if self._question.is_asked and not any(self._question.answer()):
            return
        guidance = self._guidance
        # The facts from a step ago are outdated.
        self._question.ask(*wanted(), guidance.is_far(), guidance.has_failed())
        waiting, leaving, is_far, has_failed = self._question.answer()
        only: list[int] | None = None
        if guidance.is_under_way and (has_failed or leaving):
            guidance.abort()
        if leaving:
            only = []
        elif guidance.is_under_way:
            if is_far:
                return
            only = guidance.end()
        elif not waiting or guidance.begin():
            return
        if change(only, current_place(self._loop)) is not None:
            self._state.take_world()
            self._share(has_state=True)
        guidance.abort()

    def _ask_ahead(self, may_agree: bool = False) -> None:
        """Called when the optimizer is about to take the step, and at the end of the step.

        At the former the ranks have just waited for each other's gradients, so they have the answer before the next
        step. But a step may be taken on one rank alone, so nothing is agreed on there.
        """
        if self._must_ask:
            facts = (*wanted(), self._guidance.is_under_way, False)
            try:
                self._must_ask = not self._question.ask(*facts, may_agree=may_agree)
            except _LOSSES as error:
                self._must_ask = False
                _log.debug("to be dealt with after the step: %s", error)

    def is_over(self) -> bool:
        """Whether all ranks have finished all steps; a rank lost in the last one is noticed here."""
        while self.number >= self._total:
            if not can_recover():
                return True
            try:
                barrier(name="elastic.end")
                return True
            except _LOSSES as error:
                self._recover(error, self.number)
                if self._others_are_ahead:
                    return True
        return False

    def close(self) -> None:
        """Called when the training has ended or is given up."""
        self._must_ask = False
        self._state.close()
        self._guidance.close()

    def end(self, step: Step) -> None:
        """Ends a step, or continues without ranks that were lost."""
        if step.lost is None:
            if self._must_ask:
                self._ask_ahead(may_agree=True)
            self.number += 1
            if self._state.has_leaves:
                self._state.end_step()
        else:
            stepped = self._state.has_stepped
            self._recover(step.lost, self.number + stepped, is_cut=stepped)

    def _is_behind(self, loops: Sequence[Loop]) -> bool:
        """Whether others are in the next loop: they have left this one, in which all ranks had finished all steps.

        If so, they wait for this rank where that begins, and give up what they had begun of it.
        """
        furthest = max(loops, key=lambda loop: loop.number)
        self._others_are_ahead = furthest.number > self._loop.number
        if self._others_are_ahead and self.number < self._total:
            raise InvalidArgumentError(
                f"other ranks have gone on to {furthest}, and this one is in {self._loop}, whose steps are not done"
            )
        return self._others_are_ahead

    def _restore(self) -> None:
        if self._begin is not None:
            self.number = whole_number("steps(): the result of begin()", self._begin(), 0)

    def _share(self, has_state: bool) -> None:
        """Gives all ranks the state of those that have it; if none has, the first one's that is no newcomer.

        Ranks that have it continue without newcomers that do not match.
        """
        while True:
            computed = self._state.computed_leaves() if has_state else []
            own = (has_state, self.number, computed, self._total, self._every)
            meeting = meet(own, self._position(has_state=has_state, is_interrupted=False))
            if meeting.settle(self._state.take_world):
                continue
            every = [(has, number, leaves) for has, number, leaves, *_ in meeting.told]
            sources = [rank for rank, (has, *_) in enumerate(every) if has]
            sources = sources or meeting.first_members
            unfit = _unlike(meeting, sources[0])
            unfit = unfit or misfits([self._state], sources[0])
            if not unfit:
                break
            if not any(has for has, *_ in every):
                raise InvalidArgumentError(next(iter(unfit.values())))
            part_with(unfit)
            self._state.take_world()
        received = None if has_state else take_received()
        self._state.copy_from(sources, received)
        self.number = every[sources[0]][1]
        note_arrival()
        self._state.resume_step([leaves for *_, leaves in every])

    def _position(self, *, has_state: bool, is_interrupted: bool) -> Position:
        return position(
            self._loop,
            self._parts,
            has_state=has_state,
            is_newcomer=self._is_newcomer,
            is_interrupted=is_interrupted,
        )

    def _recover(self, error: RuedaError, done: int, is_cut: bool = False) -> None:
        """Forms a world in which all ranks have done equally many steps; this rank has done ``done``.

        ``is_cut``: whether the last one was interrupted after the optimizer's step, for example before a scheduler's.
        """
        while True:
            if not is_loss(error):
                raise error
            self._guidance.abort()
            self._state.give_up_step()
            recovery = recover()
            _log.info("step %d goes on without %s", self.number, recovery.lost)
            self._state.take_world()
            try:
                own = (done, is_cut, self._state.computed_leaves())
                meeting = meet(own, self._position(has_state=done != _NOTHING, is_interrupted=True))
                meeting.settle(self._state.take_world)
                if meeting.is_begun_anew:
                    break
                if self._is_behind([each.loop for each in meeting.positions]):
                    return
                here = [
                    (each, where.is_member)
                    for each, where in zip(meeting.told, meeting.positions, strict=True)
                    if where.loop.number == self._loop.number
                ]
                every = [(each, not cut) for (each, cut, _), _ in here]
                best = max(every)
                furthest = best[0]
                if furthest == _NOTHING and not any(is_member for _, is_member in here):
                    raise state_is_lost() from error
                if best == (furthest, False):
                    _log.warning(
                        "every rank was interrupted after optimizer.step() in step %d: what follows it in the step, "
                        "such as a scheduler's step, has not happened; call optimizer.step() after everything else "
                        "that ranks do together",
                        furthest - 1,
                    )
                self.number = max(done, 0)
                if furthest == _NOTHING and not self._is_newcomer:  # no rank has the state yet
                    self._restore()
                has_state = (done, not is_cut) == best and furthest != _NOTHING
                if min(every) < (furthest, True) or furthest == _NOTHING:
                    self._share(has_state)
                else:
                    self._state.resume_step([leaves for (*_, leaves), _ in here])
                # Those that come from the loop before are as after begin(), and so is everyone then.
                self._looked_at = -1 if len(here) == len(meeting.told) else self.number
                return
            except _LOSSES as again:
                error = again
        raise error  # so that the call of which this loop is a part begins anew here as well
