"""The loop of trials: each team's leader asks and tells the study, and directs its team."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import optuna

from rueda.arguments import shown
from rueda.engines.given import function_of, positionals_of
from rueda.errors import InvalidArgumentError, RuedaError, ShutdownError
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
    storage that all ranks reach. If all ranks train one trial at a time, each may have a study in its own memory, to
    which the trials are then copied. Ranks 0 to ``ranks_per_trial`` - 1 form a team, and so on. The first rank of a
    team is its leader and alone asks and tells the study; the other ranks run no trial of Optuna's.

    - ``n_trials``: the total over all ranks; ``None``: until ``timeout`` or ``study.stop()``. A team that has finished
      or pruned a trial begins the next at once.
    - ``timeout``: the seconds after which no trial begins; ``None``: no limit.
    - ``catch``, ``callbacks``, ``gc_after_trial``: as in ``optuna.Study.optimize``, on leaders. ``study.stop()`` in a
      callback stops all teams.

    An objective gets a :class:`rueda.optuna.Trial`; the value that the trial's lowest rank returns is recorded. If it
    raises on one rank, all ranks of the trial raise the same error, and the trial's state is FAIL. For an error not in
    ``catch``, no further trial begins, and when all trials have ended, every rank of the world raises it. With several
    trials at a time, samplers beyond the first are reseeded, as by ``n_jobs`` in Optuna, so that their trials differ.

    Raises :class:`rueda.InvalidArgumentError` on every rank, before any trial, if arguments are invalid or differ, or
    if the ranks do not share one study; :class:`rueda.TimeoutError` if other jobs keep starting on the study, so that
    the ranks cannot tell; :class:`rueda.PeerLostError` if a rank is lost, whose trial, if it led one, stays RUNNING in
    storages without heartbeat. It can be called again after :func:`rueda.recover`. If ``KeyboardInterrupt`` or
    ``SystemExit`` ends it on one rank, and the program goes on, the other ranks raise :class:`rueda.ShutdownError`.
    """
    # They are iterated more than once.
    catch = tuple(catch) if isinstance(catch, Iterable) else catch
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else callbacks
    problem = _wrong(study, objective, catch, callbacks)
    agree_on_arguments(n_trials, timeout, ranks_per_trial, problem)
    is_copy, copies = agree_on_study(study, ranks_per_trial)
    with open_teams(ranks_per_trial) as (members, leaders, everyone), _departures_told():
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
            new = study.get_trials()[known:] if rank() == 0 else None
            new = broadcast_object(new, 0, "rueda.optuna.trials", everyone)
            if is_copy:
                study.add_trials(new)
        # All ranks reach the end before any of them gives up its process sets.
        told = allgather_object(failure, "rueda.optuna.end", everyone)
    failures = [each for each in told if each]
    if failures:
        first: Failure = first_cause(failures)
        # A follower has kept the failure of its trial: on the rank that raised it, that is the exception itself.
        mine = failure or team.failure
        raise mine.error if mine and mine.is_copy_of(first) else first.here()


@contextmanager
def _departures_told() -> Iterator[None]:
    """Says in the :class:`rueda.ShutdownError` of a wait for a rank that has left early what it has left."""
    try:
        yield
    except ShutdownError as error:
        raise ShutdownError(
            f"a rank has left rueda.optuna.optimize() before the others: {error}", error.peer
        ) from error


def _wrong(study: Any, objective: Any, catch: Any, callbacks: Any) -> str:
    """Why an argument on this rank has the wrong type; empty if none has."""
    if not isinstance(study, optuna.Study):
        return f"study must be an optuna.Study, not {shown(study)}"
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
    """The leader's part; returns the failure that ends the work early. Raises an error that breaks the world."""
    tickets = Tickets(leaders, n_trials)

    def train(real: Any) -> Any:
        team.signal(_TRIAL)
        team.is_training = True
        trial = Trial(team, team.form_group(), real)
        try:
            return trial.run(objective)
        finally:
            team.is_training = not trial.has_ended

    # Optuna does not apply `catch` to callbacks: in a broken world, this raises and so ends the loop.
    def go_on(_: Any, __: Any) -> None:
        if team.broken or not tickets.take():
            study.stop()

    failure = None
    ends = 2  # that the team still waits for
    try:
        try:
            if tickets.take():
                study.optimize(train, callbacks=[*callbacks, go_on], **options)
        except Exception as error:
            told = team.failure
            failure = told if told and told.error is error else report(team.rank, _uncovered(error))
        if team.broken:
            raise team.broken
        tickets.stop()
        ends = 1
        team.signal(_END)
        tickets.wait_for_all()
        ends = 0
        team.signal(_END)
    except BaseException:  # also KeyboardInterrupt and sys.exit()
        _withdraw(team, tickets, ends)
        raise
    return failure


def _withdraw(team: Team, tickets: Tickets, ends: int) -> None:
    """Ends the leader's part early, so that neither its team, which waits for ``ends``, nor other leaders wait."""
    if not team.is_training:
        with suppress(RuedaError):
            for _ in range(0 if team.broken else ends):
                team.signal(_END)
    team.leave()
    tickets.withdraw()


def _uncovered(error: Exception) -> Exception:
    """``error``, or the storage's error in telling a trial's end, if ``error`` is Optuna's later one that hides it."""
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
    """The other ranks' part: they train the leader's trials and leave errors to it."""
    while team.wait_for_signal() == _TRIAL:
        try:
            Trial(team, team.form_group(), None).run(objective)
        except Exception:
            if team.broken:
                raise team.broken from None
    team.wait_for_signal()  # all teams have ended
