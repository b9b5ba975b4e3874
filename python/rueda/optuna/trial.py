"""An Optuna trial that several ranks train together."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import optuna

from rueda.arguments import same_text
from rueda.error_texts import describe
from rueda.errors import MismatchError, ShutdownError, error_in
from rueda.failures import Failure, first_cause, report
from rueda.optuna.team import Team, leave
from rueda.process_sets import ProcessSet

__all__ = ["Trial"]

_SHOWN = ("number", "params", "distributions", "user_attrs", "constraints", "datetime_start")
# What ranks say that have left the trial without an error.
_RETURNS, _PRUNES = "returns from the objective", "raises TrialPruned"
_COLLECTIVE = "waits in a collective of trial.process_set"


class Trial(optuna.trial.BaseTrial):  # type: ignore[misc]
    """The trial that an objective gets on each rank: Optuna's trial, with the same values on all of them.

    All ranks of the trial call the same methods in the same order. The leader's Optuna answers, and every rank gets
    bitwise the values that the study records, or the same exception. :meth:`report`, :meth:`set_user_attr` and
    :meth:`set_constraint` use the value of the leader, the lowest rank.

    If a rank raises, leaves the objective early or makes another call, all ranks of the trial raise at their next
    call: the error of the rank that failed, or :class:`rueda.MismatchError`, which lists each rank's call.
    """

    def __init__(self, team: Team, process_set: ProcessSet, real: Any) -> None:
        self._team = team
        self._process_set = process_set
        self._real = real  # the leader's
        self._failure: Exception | None = None
        self._state: dict[str, Any] = {}
        self.has_ended = False
        self._take(team.tell(self._answer(lambda: None)))

    @property
    def process_set(self) -> ProcessSet:
        """The trial's ranks, for collectives and ``DistributedOptimizer``; it ends with the trial."""
        return self._process_set

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return float(self._ask("suggest_float", (name, low, high), {"step": step, "log": log}))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return int(self._ask("suggest_int", (name, low, high), {"step": step, "log": log}))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._ask("suggest_categorical", (name, choices), {})

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        return self.suggest_float(name, low, high, step=q)

    def report(self, value: float, step: int) -> None:
        self._ask("report", (value, step), {}, agreed=(step,))

    def should_prune(self) -> bool:
        return bool(self._ask("should_prune", (), {}))

    def set_user_attr(self, key: str, value: Any) -> None:
        self._ask("set_user_attr", (key, value), {}, agreed=(key,))

    def set_constraint(self, key: str, value: float) -> None:
        self._ask("set_constraint", (key, value), {}, agreed=(key,))

    @property
    def number(self) -> int:
        return int(self._state["number"])

    @property
    def params(self) -> dict[str, Any]:
        return dict(self._state["params"])

    @property
    def distributions(self) -> dict[str, Any]:
        return dict(self._state["distributions"])

    @property
    def user_attrs(self) -> dict[str, Any]:
        return dict(self._state["user_attrs"])

    @property
    def constraints(self) -> dict[str, float]:
        return dict(self._state["constraints"])

    @property
    def datetime_start(self) -> datetime.datetime | None:
        start: datetime.datetime | None = self._state["datetime_start"]
        return start

    def run(self, objective: Callable[[Trial], Any]) -> Any:
        """Runs the objective on this rank, ends the trial's process set, and returns the objective's value.

        If a rank raises an error, all ranks of the trial raise it; ``optuna.TrialPruned`` if all have raised that.
        """
        value: Any = None
        raised: Exception | None = None
        said: str | Failure = _RETURNS
        try:
            value = None if self._failure else objective(self)
        except optuna.TrialPruned as pruned:
            raised = pruned
            said = _PRUNES
        except Exception as error:
            raised = error
            said = report(self._team.rank, error)
        finally:
            leave(self._process_set)
        if self._failure is None:
            self._meet(said)
        self.has_ended = True
        # An objective that swallowed an error of this trial has failed nonetheless.
        if self._failure is not None:
            raise self._failure
        if raised is not None:
            raise raised
        return value

    def _ask(
        self, method: str, arguments: tuple[Any, ...], options: dict[str, Any], agreed: Any = None
    ) -> Any:
        """Calls a method of Optuna's trial on the leader, and returns or raises the same on all ranks."""
        if self._failure is None:
            given = [same_text(each) for each in (arguments if agreed is None else agreed)]
            given += [f"{key}={same_text(value)}" for key, value in options.items()]
            self._meet(f"calls {method}({', '.join(given)})")
        if self._failure is not None:
            raise self._failure
        value, failed = self._take(
            self._team.tell(
                self._answer(lambda: getattr(self._real, method)(*arguments, **options))
            )
        )
        if failed is not None:
            raise failed
        return value

    def _answer(self, call: Callable[[], Any]) -> tuple[Any, Failure | None, dict[str, Any]] | None:
        """The leader's result from the study and the trial's state after it; None on other ranks."""
        if self._real is None:
            return None
        try:
            value, failed = call(), None
        except Exception as error:
            value, failed = None, report(self._team.rank, error)
        try:
            return value, failed, {name: getattr(self._real, name) for name in _SHOWN}
        except Exception as error:  # the storage is gone
            return None, failed or report(self._team.rank, error), self._state

    def _take(
        self, answer: tuple[Any, Failure | None, dict[str, Any]]
    ) -> tuple[Any, Exception | None]:
        value, failed, self._state = answer
        if failed is None:
            return value, None
        error = failed.error if self._team.is_leader else failed.here()
        if not self._state:
            self._failure = error
        return value, error

    def _meet(self, said: str | Failure) -> None:
        """Compares what the ranks do. Sets the trial's failure if one has failed or they differ."""
        everyone = self._team.gather(said)
        failures = [each for each in everyone if isinstance(each, Failure)]
        mine = said.error if isinstance(said, Failure) else None
        echoes = [each for each in failures if isinstance(error_in(each.error), ShutdownError)]
        if len(echoes) == len(failures) and any(each in (_RETURNS, _PRUNES) for each in everyone):
            # These were in a collective of the set that the others have left.
            everyone = [_COLLECTIVE if isinstance(each, Failure) else each for each in everyone]
            failures = []
        if failures:
            first = first_cause(failures)
            # An error that all ranks got alike from the study belongs to no rank in particular.
            alike = {describe(type(each.error), each.error) for each in failures}
            together = len(failures) == len(everyone) and len(alike) == 1
            is_mine = together or first.rank == self._team.rank
            failure = mine if mine and is_mine else first.here()
            self._failure, self._team.failure = failure, replace(first, error=failure)
        elif len(set(everyone)) > 1:
            told = (
                f"rank {rank} {act}" for rank, act in zip(self._team.ranks, everyone, strict=True)
            )
            self._failure = MismatchError(
                f"the ranks of trial {self.number} must call the same methods of it: {', '.join(told)}"
            )
            self._failure.__cause__ = mine
