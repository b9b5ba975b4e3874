"""The loop around a training function that begins anew from a state, for rueda.elastic.run and for Horovod's."""

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

# What would only happen again.
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
    """The function ``func(state, ...)``, begun anew from the state where the world is formed anew.

    The state is synchronised first, unless the interrupt before had a true ``skip_sync``. After one of ``failures`` it
    is restored; ``check`` raises instead where nothing is to be tried again. After one of ``interrupts`` it stays as it
    is, and ``update`` is called; where that tells who has joined, maybe nobody, the world is as it should be, and
    ``reset`` is not called. Then follows the state's ``on_reset()``. Newcomers are given the state also where the
    interrupt knew of none, and so are those who have been in the new world already when it broke.
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
