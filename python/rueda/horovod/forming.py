"""The loop of elastic training and how it forms the world anew, for every framework."""

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
    """``func``, begun anew from the last commit when a collective fails; see ``rueda.horovod.torch.elastic.run``."""
    return run_fn(func, _reset, _update)


def _reset() -> None:
    if rueda.recovery.can_recover():
        _recover()
    else:
        shutdown()
        init()


def _update() -> list[int] | None:
    """Lets newcomers in, who are told, and goes on without those that leave; None where nothing has come of it."""
    try:
        changed = changes.update()
    except (PeerLostError, ShutdownError):
        return None  # by reset() the others go on
    if changed is None:
        return None
    end_process_sets()
    return changed.joined


@translated
def _recover() -> None:
    rueda.recovery.recover(break_whole=True)
    end_process_sets()  # as shutdown() and init() do, which is what Horovod does
