"""The elastic training loop and how it re-forms the world, for every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import rueda.recovery
from rueda.attendance import attendance
from rueda.elastic import changes
from rueda.elastic.meeting import StateIsLost, state_is_lost
from rueda.elastic.rerun import recurs
from rueda.errors import RuedaError
from rueda.horovod.basics import init, shutdown
from rueda.horovod.elastic_state import run_fn
from rueda.horovod.exceptions import HostsUpdatedInterrupt, translated, translation_of
from rueda.lifecycle import is_initialized
from rueda.objects import allgather_object
from rueda.observation import options
from rueda.process_sets import end_process_sets

__all__ = ["Forming", "run"]

P = ParamSpec("P")
T = TypeVar("T")


def run(func: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Restarts ``func`` from the last commit if a collective fails; see ``rueda.horovod.torch.elastic.run``."""
    forming = Forming()
    return run_fn(func, _reset, forming.update, forming.sync)


class Forming:
    """Changes of the world of one training function, and who has its state."""

    def __init__(self) -> None:
        # This rank alone was told of a change of the hosts: all look for it when they meet.
        self._is_told = False

    def update(self, interrupt: HostsUpdatedInterrupt) -> list[int] | None:
        """Admits newcomers, drops leaving ranks and returns the new ranks; None if the world is to be formed again.

        That is so if it has not changed, if that failed in a way that another world may repair, and if the others may
        be elsewhere: when the world breaks, they come too.
        """
        if not interrupt.is_agreed:
            self._is_told = True
            return None
        try:
            return _change()
        except RuedaError as error:
            if recurs(error):
                raise translation_of(error) from error
            return None

    def sync(self, state: Any) -> None:
        """Calls ``state.sync()``, for which rank 0 is made one that has the training's state.

        A newcomer has it after its first complete sync. Raises :class:`rueda.elastic.meeting.StateIsLost` on every rank
        if only newcomers without it are left.
        """
        if attendance().number >= 0:  # in a job that newcomers can join
            self._put_holder_first(state)
        state.sync()
        attendance().is_newcomer = False

    def _put_holder_first(self, state: Any) -> None:
        while True:
            told = allgather_object((attendance().is_newcomer, self._is_told), "elastic/holders")
            if any(is_told for _, is_told in told):
                self._is_told = True  # also if the world breaks before they have looked
                joined = _change()
                self._is_told = False
                if joined is not None:
                    state.on_reset()
                    continue  # with those who have joined
            holders = [rank for rank, (is_newcomer, _) in enumerate(told) if not is_newcomer]
            if not holders:
                raise state_is_lost()
            if holders[0] == 0:
                return
            # All that were here before are lost, and of those who came with the new rank 0 only some got the state.
            if not changes.put_first(holders[0]):
                raise StateIsLost(
                    f"only rank {holders[0]} has the training's state, and no world was formed in which it comes "
                    "first: start the job again, from its last checkpoint if it writes any"
                )
            end_process_sets()
            state.on_reset()


def _reset() -> None:
    if rueda.recovery.can_recover():
        _recover()
    elif is_initialized() and options()["recovery"] == "on":
        # The last rank left: init() would wait for ranks that are gone, and its world of one cannot break.
        end_process_sets()
    else:
        shutdown()
        init()


def _change() -> list[int] | None:
    """Admits newcomers and drops leaving ranks; the new ranks, or None if the world has not changed."""
    changed = changes.update()
    if changed is None:
        return None
    end_process_sets()
    return changed.joined


@translated
def _recover() -> None:
    rueda.recovery.recover(break_whole=True)
    end_process_sets()  # as shutdown() and init() do, which Horovod calls
