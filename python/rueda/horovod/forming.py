"""The elastic training loop and how it re-forms the world, for every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import rueda.recovery
from rueda.elastic import changes
from rueda.errors import PeerLostError, ShutdownError
from rueda.horovod.basics import init, shutdown
from rueda.horovod.elastic_state import run_fn
from rueda.horovod.exceptions import translated
from rueda.process_sets import end_process_sets

__all__ = ["run"]

P = ParamSpec("P")
T = TypeVar("T")


def run(func: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Restarts ``func`` from the last commit if a collective fails; see ``rueda.horovod.torch.elastic.run``."""
    return run_fn(func, _reset, _update)


def _reset() -> None:
    if rueda.recovery.can_recover():
        _recover()
    else:
        shutdown()
        init()


def _update() -> list[int] | None:
    """Admits newcomers, drops leaving ranks and returns the new ranks; None if the world has not changed."""
    try:
        changed = changes.update()
    except (PeerLostError, ShutdownError):
        return None  # the remaining ranks continue through reset()
    if changed is None:
        return None
    end_process_sets()
    return changed.joined


@translated
def _recover() -> None:
    rueda.recovery.recover(break_whole=True)
    end_process_sets()  # as shutdown() and init() do, which Horovod calls
