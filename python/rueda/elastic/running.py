"""A training function that returns to the last commit when a rank is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rueda.elastic.changes import change
from rueda.elastic.rerun import begun_anew, recurs
from rueda.elastic.state import ChangeWanted
from rueda.errors import PeerLostError, ShutdownError, error_in
from rueda.recovery import can_recover, recover

__all__ = ["run"]

# Where newcomers must meet the others before anything else.
_PLACE = "a function with @rueda.elastic.run"

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
    which would raise :class:`rueda.InvalidArgumentError` there.

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
    return begun_anew(
        func,
        interrupts=ChangeWanted,
        check=_check,
        reset=_reset,
        update=_update,
    )


def _check(error: Exception) -> None:
    told = error_in(error)
    if told is None or recurs(told) or not can_recover():
        raise error


def _reset() -> None:
    recover(break_whole=True)


def _update() -> list[int] | None:
    """Who has joined; an empty list also if the change failed but the world is intact."""
    try:
        changed = change(None, _PLACE)
    except (PeerLostError, ShutdownError) as error:
        _check(error)
        return None  # reset() makes the others continue
    return changed.joined if changed is not None else []
