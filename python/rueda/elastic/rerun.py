"""The loop that restarts a training function from a state, for rueda.elastic.run and for Horovod's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rueda.errors import (
    DuplicateNameError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    UnsupportedError,
)

__all__ = ["LASTING", "begun_anew"]

P = ParamSpec("P")
T = TypeVar("T")

# Errors that would only happen again.
LASTING = (
    DuplicateNameError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    UnsupportedError,
)


def begun_anew(
    func: Callable[Concatenate[Any, P], T],
    *,
    interrupts: type[Exception],
    failures: tuple[type[Exception], ...],
    check: Callable[[Exception], None],
    reset: Callable[[], None],
    update: Callable[[], list[int] | None] | None,
) -> Callable[Concatenate[Any, P], T]:
    """The function ``func(state, ...)``, restarted from the state whenever the world is formed again.

    The state is synchronised first, unless the previous interrupt had a true ``skip_sync``. After one of ``failures``
    it is restored; ``check`` raises instead if retrying is pointless. After one of ``interrupts`` the state is kept,
    and ``update`` is called. If that returns who has joined, possibly nobody, the world is as it should be, and
    ``reset`` is not called. The state's ``on_reset()`` follows. Newcomers are given the state even if the interrupt
    knew of none, and so are ranks that were already in the new world when it broke.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        skip_sync = False
        while True:
            is_update = False
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except interrupts as interrupt:
                skip_sync = bool(getattr(interrupt, "skip_sync", False))
                is_update = True
            except failures as error:
                check(error)
                state.restore()
                skip_sync = False
            joined = None
            if is_update and update is not None:
                joined = update()
                skip_sync = skip_sync and joined == []
            if joined is None:
                reset()
            state.on_reset()

    return wrapper  # type: ignore[return-value]  # its first parameter has a name
