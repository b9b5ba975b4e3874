"""The loop of trials: each team's leader asks the study, tells it, and takes the team along."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import optuna

from rueda.arguments import shown
from rueda.engines.given import function_of, positionals_of
from rueda.errors import InvalidArgumentError
from rueda.failures import Failure, first_cause, report
from rueda.lifecycle import rank
from rueda.objects import allgather_object, broadcast_object
from rueda.optuna.agreement import agree_on_arguments, agree_on_study
from rueda.optuna.team import Team, open_teams
from rueda.optuna.tickets import Tickets
from rueda.optuna.trial import Trial
from rueda.process_sets import ProcessSet

__all__ = ["optimize"]

Callback = Callable[[Any, Any], None]
_END, _TRIAL = 0, 1  # signals


def optimize(
    study: optuna.Study,
    objective: Callable[[Trial], Any],
    n_trials: int | None = None,
    timeout: float | None = None,
    ranks_per_trial: int = 2,
    catch: Iterable[type[Exception]] | type[Exception] = (),
    callbacks: Iterable[Callback] | None = None,
    gc_after_trial: bool = False,
) -> None:
    """Runs trials in parallel on all ranks of the world, each trial on ``ranks_per_trial`` of them.

    Every rank calls this, after :func:`rueda.init`, with the same arguments and with the same study, opened from a
    storage that all reach. Where all ranks train one trial at a time, each may have a study in its own memory: all then
    get the trials. Which ranks train together: 0 to ``ranks_per_trial`` - 1, and so on; the first of them leads, and
    alone asks and tells. On the others nothing of Optuna runs.

    - ``n_trials``: of all ranks together; ``None``: until ``timeout`` or ``study.stop()``. Whoever has finished a
      trial, or has pruned it, begins the next at once.
    - ``timeout``: in seconds, after which no trial is begun; ``None``: no limit.
    - ``catch``, ``callbacks``, ``gc_after_trial``: as in ``optuna.Study.optimize``, on leaders. ``study.stop()`` in a
      callback ends the work of all.

    An objective gets a :class:`rueda.optuna.Trial`; what the lowest rank of a trial returns is recorded. What it raises
    on one rank, all ranks of the trial raise; the trial is told FAIL. If ``catch`` does not have it, no trial is begun
    any more, and when all have ended, every rank of the world raises it. With several trials at a time, samplers
    beyond the first are seeded anew, as by ``n_jobs`` in Optuna: their trials would else be the same.

    Raises :class:`rueda.InvalidArgumentError` on every rank, before anything begins, for arguments that cannot work or
    differ, and where the ranks do not have one study; :class:`rueda.TimeoutError` where other jobs begin on the study
    all the time, so that nobody can tell. Raises :class:`rueda.PeerLostError` where a rank is lost; the trial that it
    has led stays RUNNING in storages without heartbeat. It may be called again after :func:`rueda.recover`.
    """
    # More than one look is taken at them.
    catch = tuple(catch) if isinstance(catch, Iterable) else catch
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else callbacks
    problem = _wrong(study, objective, catch, callbacks)
    agree_on_arguments(n_trials, timeout, ranks_per_trial, problem)
    is_copy, copies = agree_on_study(study, ranks_per_trial)
    with open_teams(ranks_per_trial) as (members, leaders):
        team = Team(members)
        if rank() >= ranks_per_trial and team.is_leader:
            study.sampler.reseed_rng()
        known = len(study.get_trials(deepcopy=False))
        failure = None
        if team.is_leader:
            options = {"catch": catch, "gc_after_trial": gc_after_trial, "timeout": timeout}
            failure = _lead(team, study, objective, n_trials, leaders, callbacks or (), options)
        else:
            _follow(team, objective)
        if copies:
            new = broadcast_object(study.get_trials()[known:] if rank() == 0 else None, 0)
            if is_copy:
                study.add_trials(new)
        # All have come to the end before any of them gives up the sets.
        failures = [each for each in allgather_object(failure, "rueda.optuna.end") if each]
    if failures:
        first: Failure = first_cause(failures)
        raise failure.error if failure and failure.rank == first.rank == rank() else first.here()


def _wrong(study: Any, objective: Any, catch: Any, callbacks: Any) -> str:
    """What is of another kind than it must be, on this rank."""
    if not isinstance(study, optuna.Study):
        return f"study is an optuna.Study, not {shown(study)}"
    caught = catch if isinstance(catch, tuple) else (catch,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in caught):
        return f"catch={shown(catch)}: pass classes of exceptions"
    try:
        function_of("objective", objective)
        for callback in positionals_of("callbacks", callbacks):
            function_of("callbacks", callback)
    except InvalidArgumentError as error:
        return f"{error}"
    return ""


def _lead(
    team: Team,
    study: Any,
    objective: Callable[[Trial], Any],
    n_trials: int | None,
    leaders: ProcessSet,
    callbacks: Iterable[Callback],
    options: dict[str, Any],
) -> Failure | None:
    """The leader's part; returns what ends the work before its time. Raises what ends the world."""
    tickets = Tickets(leaders, n_trials)

    def train(real: Any) -> Any:
        team.signal(_TRIAL)
        return Trial(team, team.form_group(), real).run(objective)

    # Not subject to `catch`: in a world that has failed it raises, and so ends the loop.
    def go_on(_: Any, __: Any) -> None:
        if not tickets.take():
            study.stop()

    failure = None
    try:
        if tickets.take():
            study.optimize(train, callbacks=[*callbacks, go_on], **options)
    except Exception as error:
        told = team.failure
        failure = told if told and told.error is error else report(team.rank, _uncovered(error))
    if team.broken:
        raise team.broken
    tickets.stop()
    team.signal(_END)
    tickets.wait_for_all()
    team.signal(_END)
    return failure


def _uncovered(error: Exception) -> Exception:
    """What a storage has raised when a trial was told its end, which what Optuna then does about that end covers."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    of_optuna = frame.f_globals.get("__name__") == "optuna.study._optimize"
    covered = error.__context__
    if (
        isinstance(error, AssertionError | UnboundLocalError)
        and of_optuna
        and isinstance(covered, Exception)
    ):
        return covered
    return error


def _follow(team: Team, objective: Callable[[Trial], Any]) -> None:
    """The part of the others: they train what the leader begins, and leave errors to it."""
    while team.wait_for_signal() == _TRIAL:
        try:
            Trial(team, team.form_group(), None).run(objective)
        except Exception:
            if team.broken:
                raise team.broken from None
    team.wait_for_signal()  # that all teams have ended
