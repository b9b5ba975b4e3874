"""A training loop that goes on whoever comes and goes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from rueda.elastic.changes import change, part_with, wanted
from rueda.elastic.guidance import Guidance
from rueda.elastic.joining import came_late, take_received
from rueda.elastic.question import Question
from rueda.elastic.shared_state import SharedState, misfits
from rueda.errors import (
    InitializationError,
    InvalidArgumentError,
    PeerLostError,
    RuedaError,
    ShutdownError,
)
from rueda.exchanges import barrier
from rueda.objects import allgather_object
from rueda.recovery import can_recover, is_loss, recover

__all__ = ["Step", "steps"]

_log = logging.getLogger("rueda")

# State that is smaller is there before a link for it could be opened.
BACKGROUND_BYTES = 16 << 20

# How many steps a rank has done whose state is not yet the others'.
_NOTHING = -1

# With which a rank is lost, the latter where it has ended in good order: see is_loss().
_LOSSES = (PeerLostError, ShutdownError)


class Step:
    """One step of :func:`steps`: everything that it does goes into ``with step:``.

    ``number``: from 0. It may come again where a rank was lost meanwhile.

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
        if isinstance(error, _LOSSES) and is_loss(error):
            self.lost = error
        return self.lost is not None

    def check(self) -> None:
        """Raises :class:`rueda.InvalidArgumentError` where the loop's body has not entered the step."""
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
    """The steps of a training from which ranks may be lost, and which others may join; no step is lost or done twice.

    ``total``: how many there are. ``state``: what all ranks have in common, objects with ``state_dict()`` and
    ``load_state_dict()``: the model, the optimizer, of which there may be one, samplers. At the start every rank gets
    what rank 0 has. ``every``: after how many steps newcomers are let in. ``begin``: called at the start by the ranks
    of a job, not by newcomers, to load a checkpoint, say; returns the number of the first step, which is 0 without it.
    ``background_bytes``: models and optimizers that are at least as large travel to newcomers while the others train
    on; 16 MiB by default.

    When a rank is lost (``rueda run --min-np``), or ends in good order before the last step, as by ``sys.exit(0)``,
    the others go on in a new world: those that had not come to the end of the step do it again, unless one of them had
    taken the optimizer's step, in which case all get its state. Nothing else is brought back: take the step's data by
    its number, and let optimizer.step() come after everything else that ranks do together. After the last step the
    ranks wait for each other, so that who is lost in it is not missed in what follows; what they do together after the
    loop needs a :func:`rueda.recover` of its own. Between steps, processes that wait to join (``rueda run --max-np``)
    are let in, and get the state and the number of the step. With ``DistributedOptimizer(reproducible=True)`` the
    leaves are divided anew, and the parameters end with the bits of a run that nothing has disturbed.

    Collective over the world; a newcomer comes here after its :func:`rueda.init` without any other collective.

    Raises :class:`rueda.PeerLostError` where this rank must stop, see :func:`rueda.recover`,
    :class:`rueda.InvalidArgumentError` where the ranks' states are of different kinds: on every rank at the start of
    the job, and later on the newcomer, without which the others go on, and
    :class:`rueda.InitializationError` where nobody is left but newcomers that have not got the state yet.

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
    if total < 0 or every < 1:
        raise InvalidArgumentError(f"steps(): total={total} and every={every} make no sense")
    course = _Course(SharedState(state), total, every, begin, background_bytes)
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


class _Course:
    """How far the training is."""

    def __init__(
        self,
        state: SharedState,
        total: int,
        every: int,
        begin: Callable[[], int] | None,
        background_bytes: int,
    ) -> None:
        self.number = 0
        self._state = state
        self._guidance = Guidance(state, background_bytes)
        self._total = total
        self._every = every
        self._begin = begin
        self._question = Question(4)
        self._looked_at = -1  # the step before which newcomers were looked for
        self._is_newcomer = False  # and has no state yet

    def begin(self) -> None:
        """A rank that is new gets what the others have; at the start of the job, what rank 0 has."""
        self._is_newcomer = came_late()
        try:
            if not self._is_newcomer:
                self._restore()
            self._share(has_state=False)
            self._looked_at = self.number  # as those did who have let this rank in
        except _LOSSES as error:
            self._recover(error, _NOTHING)

    def prepare(self) -> bool:
        """Lets newcomers in. False where a rank was lost meanwhile."""
        try:
            if self._looked_at != self.number and self.number % self._every == 0:
                self._looked_at = self.number
                self._let_in()
            following = self.number + 1
            if following % self._every == 0 and following < self._total:
                self._ask()  # answered while the step is done
        except _LOSSES as error:
            self._recover(error, self.number)
            return False
        self._state.begin_step()
        return True

    def _let_in(self) -> None:
        """Those who wait to join begin to follow, and are let in once they are near; members leave at once."""
        if self._question.is_asked and not any(self._question.answer()):
            return
        self._ask()  # what was true a step ago is not what is to be decided by
        waiting, leaving, is_far, has_failed = self._question.answer()
        guidance = self._guidance
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
        if change(only) is not None:
            self._state.take_world()
            self._share(has_state=True)
        guidance.abort()

    def _ask(self) -> None:
        guidance = self._guidance
        self._question.ask(*wanted(), guidance.is_far(), guidance.has_failed())

    def is_over(self) -> bool:
        """Whether all have done all steps: who is lost in the last one is not missed in what follows."""
        while self.number >= self._total:
            if not can_recover():
                return True
            try:
                barrier(name="elastic.end")
                return True
            except _LOSSES as error:
                self._recover(error, self.number)
        return False

    def close(self) -> None:
        """The training is over, or given up."""
        self._guidance.close()

    def end(self, step: Step) -> None:
        """The step is done, or goes on without ranks that were lost."""
        if step.lost is None:
            self.number += 1
        else:
            stepped = self._state.has_stepped
            self._recover(step.lost, self.number + stepped, is_cut=stepped)

    def _restore(self) -> None:
        if self._begin is not None:
            self.number = self._begin()

    def _share(self, has_state: bool) -> None:
        """All get what those have who have the state; where nobody has, what rank 0 has.

        Those that have it go on without newcomers of another kind.
        """
        while True:
            every = allgather_object((has_state, self.number), "elastic.step")
            sources = [rank for rank, (has, _) in enumerate(every) if has] or [0]
            unfit = misfits([self._state], sources[0])
            if not unfit:
                break
            if not any(has for has, _ in every):
                raise InvalidArgumentError(next(iter(unfit.values())))
            part_with(unfit)
            self._state.take_world()
        received = None if has_state else take_received()
        self._state.copy_from(sources, received)
        self.number = every[sources[0]][1]

    def _recover(self, error: RuedaError, done: int, is_cut: bool = False) -> None:
        """Until a world is formed in which all have done equally many steps; this rank has done ``done``.

        ``is_cut``: whether the last of them broke off behind the optimizer's step, before a scheduler's, say.
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
                told = allgather_object((done, is_cut, self._is_newcomer), "elastic.done")
                every = [(each, not cut) for each, cut, _ in told]
                best = max(every)
                furthest = best[0]
                if furthest == _NOTHING and all(is_newcomer for *_, is_newcomer in told):
                    raise InitializationError(
                        "all ranks that had the training's state are lost, and those that are left had not got it yet"
                    ) from error
                self.number = max(done, 0)
                if furthest == _NOTHING:  # the job has just been started: nobody has come to it
                    self._restore()
                has_state = (done, not is_cut) == best and furthest != _NOTHING
                if min(every) < (furthest, True) or furthest == _NOTHING:
                    self._share(has_state)
                self._looked_at = -1
                return
            except _LOSSES as again:
                error = again
