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
    update: Callable[[], bool] | None,
) -> Callable[Concatenate[Any, P], T]:
    """The function ``func(state, ...)``, begun anew from the state where the world is formed anew.

    The state is synchronised first, unless the interrupt before had a true ``skip_sync``. After one of ``failures`` it
    is restored; ``check`` raises instead where nothing is to be tried again. After one of ``interrupts`` it stays as it
    is, and ``update`` is called; where that says that the world is as it should be, ``reset`` is not called. Then
    follows the state's ``on_reset()``.
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
            if not (is_update and update is not None and update()):
                reset()
            state.on_reset()

    return wrapper  # type: ignore[return-value]  # its first parameter has a name
