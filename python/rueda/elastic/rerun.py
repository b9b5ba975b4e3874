"""The loop that restarts a training function from a state, for rueda.elastic.run and for Horovod's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rueda.elastic.name_counts import align_names
from rueda.errors import PeerLostError, RuedaError, error_in
from rueda.recovery import is_loss

__all__ = ["begun_anew", "recurs"]

P = ParamSpec("P")
T = TypeVar("T")


def recurs(error: BaseException | None) -> bool:
    """Whether an error would only happen again in another world; not if a lost rank was its cause."""
    return (
        isinstance(error, RuedaError)
        and error.recurs
        and not isinstance(error.__cause__, PeerLostError)
    )


def begun_anew(
    func: Callable[Concatenate[Any, P], T],
    *,
    interrupts: type[Exception],
    check: Callable[[Exception], None],
    reset: Callable[[], None],
    update: Callable[[Any], list[int] | None] | None,
    sync: Callable[[Any], None] | None = None,
) -> Callable[Concatenate[Any, P], T]:
    """The function ``func(state, ...)``, restarted from the state whenever the world is formed again.

    The state is synchronised first, unless the previous interrupt had a true ``skip_sync``: by ``sync``, which gets it,
    or by its own ``sync()``. After one of ``interrupts`` it is kept, and ``update`` is called with that. After any
    other exception it is restored; ``check`` raises instead if another world would not help. If ``update`` returns who
    has joined, possibly nobody, the world is as it should be, and ``reset`` is not called. The state's ``on_reset()``
    follows; a rank that is lost during that is a failure like any other. Newcomers are given the state even if the
    interrupt knew of none, and so are ranks that were already in the new world when it broke.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        skip_sync = False
        while True:
            interrupt: Exception | None = None
            try:
                if not skip_sync:
                    state.sync() if sync is None else sync(state)
                align_names()
                return func(state, *args, **kwargs)
            except interrupts as caught:
                skip_sync = bool(getattr(caught, "skip_sync", False))
                interrupt = caught
            except Exception as error:
                check(error)
                state.restore()
                skip_sync = False
            while True:
                joined = None
                if interrupt is not None and update is not None:
                    joined = update(interrupt)
                    skip_sync = skip_sync and joined == []
                if joined is None:
                    reset()
                try:
                    state.on_reset()
                    break
                except Exception as error:
                    told = error_in(error)
                    if told is None or not is_loss(told):
                        raise
                    state.restore()
                    skip_sync, interrupt = False, None

    return wrapper  # type: ignore[return-value]  # its first parameter has a name
