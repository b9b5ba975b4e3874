"""A training function that returns to the last commit when a rank is lost."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from rueda.elastic.changes import change
from rueda.elastic.loops import RUN, begin_loop, current_place, inside, note_result, passes_over
from rueda.elastic.meeting import CallIsOver
from rueda.elastic.rerun import begun_anew, recurs
from rueda.elastic.state import ChangeWanted
from rueda.errors import RuedaError, error_in
from rueda.recovery import can_recover, recover

__all__ = ["run"]

_log = logging.getLogger("rueda")

P = ParamSpec("P")
T = TypeVar("T")


def run(func: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Decorator for a training function whose first argument is a :class:`rueda.elastic.State`.

    The state is synchronised, then the function is called. When a rank is lost (``rueda run --min-np``), or a
    collective fails in another way that a new world may fix, the remaining ranks restore the last
    :meth:`~rueda.elastic.State.commit`, form a new world, call the reset callbacks and synchronise, and the function
    starts again. At a commit, processes that wait to join (``rueda run --max-np``) are admitted, and those that must
    leave end with ``SystemExit(0)``; then, too, the function starts again, from what was just committed.
    :func:`rueda.elastic.steps` is a loop that does not go back.

    Collective over the world; a newcomer must call it after its :func:`rueda.init` without any collective in between,
    which would raise :class:`rueda.InvalidArgumentError` there. A script may call such functions several times: on a
    newcomer, calls before the one in which the others are do nothing and return ``None``. If one of them has returned
    anything else on the others, the newcomer gets :class:`rueda.InvalidArgumentError`. If a rank is lost just when a
    call ends, so that it has ended on some of the ranks only, it returns on the rest what it has returned on those;
    where ranks may be lost, results are pickled for that.

    Raises, in addition to what the function raises: :class:`rueda.PeerLostError` if this rank must stop or the job was
    started without recovery, see :func:`rueda.recover`; errors that would only come back, such as
    :class:`rueda.MismatchError`, :class:`rueda.torch.DivergenceError` or a
    :class:`rueda.checkpoint.CheckpointError` because of a full disk; the error of a handle that is kept from a
    world that has ended, if the function keeps waiting for it when it is started again; and what
    :meth:`rueda.elastic.State.sync` raises.

    Example::

        >>> @rueda.elastic.run
        ... def train(state, epochs):
        ...     while state.epoch < epochs:
        ...         state.epoch += 1
        ...         state.commit()
        ...     return state.epoch
        >>> train(rueda.elastic.State(epoch=0), epochs=3)
        3
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = begin_loop(RUN, getattr(func, "__qualname__", type(func).__name__))
        if passes_over(loop, state._parts()):
            return cast(T, None)  # as on the others
        # If a rank is lost before the function begins, what was done after the last commit is not given up.
        state.save()

        def counted(state: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            with inside(loop):
                return func(state, *args, **kwargs)

        restarted = begun_anew(
            counted,
            interrupts=ChangeWanted,
            check=_check,
            reset=_reset,
            update=_update,
        )
        result: object
        try:
            result = restarted(state, *args, **kwargs)
        except CallIsOver as over:  # a rank was lost just when it ended
            state.fall_behind()
            if len(loop.number) > 1:
                raise  # the call that has ended is the one that this one is part of
            _log.warning(
                "%s has ended on the other ranks when one was lost: this rank goes on after it, without what the "
                "function does after its last commit",
                loop,
            )
            result = over.result  # as on the others
        note_result(loop, result)
        return cast(T, result)

    return wrapper  # type: ignore[return-value]  # its first parameter has a name


def _check(error: Exception) -> None:
    told = error_in(error)
    if told is None or recurs(told) or not can_recover():
        raise error


def _reset() -> None:
    recover(break_whole=True)


def _update(_: ChangeWanted) -> list[int] | None:
    """Who has joined; an empty list also if the change failed but the world is intact."""
    try:
        changed = change(None, current_place())
    except RuedaError as error:
        _check(error)
        return None  # reset() makes the others continue
    return changed.joined if changed is not None else []
