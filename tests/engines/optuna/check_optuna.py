"""Trials of several ranks: what is recorded, pruned and raised. Run on 4 ranks, two to a trial."""

from __future__ import annotations

import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import rueda
import rueda.optuna
from digits import accuracy_of, require_as_good, trained_by
from rueda.optuna import agreement

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "parallel" / "python")]
from parallel import raises, run, still_works  # noqa: E402

FOLDER = Path(sys.argv[1])
optuna.logging.set_verbosity(optuna.logging.ERROR)
Storage = optuna.storages.JournalStorage
File = optuna.storages.journal.JournalFileBackend


def shared(name: str, **options: Any) -> optuna.Study:
    storage = Storage(File(str(FOLDER / f"{name}.log")))
    return optuna.create_study(storage=storage, study_name=name, load_if_exists=True, **options)


def bits(value: object) -> bytes:
    return struct.pack("<d", value) if isinstance(value, float) else repr(value).encode()


def check_what_trains_is_what_is_recorded() -> None:
    study = shared("values", pruner=optuna.pruners.ThresholdPruner(upper=0.5))
    if rueda.rank() == 0:
        for x in (0.9, 0.1):  # so that some trials are pruned and some are not
            study.enqueue_trial({"x": x})
    rueda.barrier(name="enqueued")
    seen: dict[int, dict[str, Any]] = {}
    together: list[tuple[int, ...]] = []

    def objective(trial: rueda.optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 1e-7, 1e-1, log=True)
        x = trial.suggest_float("x", 0.0, 1.0)
        big = trial.suggest_int("big", 2**40, 2**60)
        kind = trial.suggest_categorical("kind", ["sgd", None, 3, 0.1])
        seen[trial.number] = {"rate": rate, "x": x, "big": big, "kind": kind}
        assert trial.params == seen[trial.number]
        together.append(tuple(trial.process_set.ranks))
        for step in range(3):
            # The ranks' shares of a loss: only their sum is x.
            share = np.array([x * (0.25 if trial.process_set.rank() else 0.75)])
            loss = rueda.allreduce(share, "loss", rueda.Sum, process_set=trial.process_set)
            trial.report(float(loss[0]), step)
            if trial.should_prune():
                raise optuna.TrialPruned()
        trial.set_user_attr("ranks", trial.process_set.ranks)
        assert trial.user_attrs["ranks"] == trial.process_set.ranks
        return x

    rueda.optuna.optimize(study, objective, n_trials=30, ranks_per_trial=2)
    mine = rueda.rank() // 2
    assert set(together) == {(2 * mine, 2 * mine + 1)}
    trials = study.get_trials()
    assert [trial.number for trial in trials] == list(range(30))
    for number, values in seen.items():
        recorded = trials[number].params
        assert {k: bits(v) for k, v in values.items()} == {k: bits(v) for k, v in recorded.items()}
    everyone = rueda.allgather_object(seen)
    assert everyone[0] == everyone[1]
    assert everyone[2] == everyone[3]
    assert everyone[0]
    assert everyone[2]
    assert everyone[0].keys() | everyone[2].keys() == set(range(30))
    assert not everyone[0].keys() & everyone[2].keys()
    states = {True: optuna.trial.TrialState.PRUNED, False: optuna.trial.TrialState.COMPLETE}
    for trial in trials:
        assert trial.state == states[trial.params["x"] > 0.5]
    assert len({trial.state for trial in trials}) == 2
    assert study.best_value == min(t.value for t in trials if t.state == states[False])
    assert len(set(rueda.allgather_object(study.best_trial.number))) == 1


def check_digits_are_trained_as_by_one_process() -> None:
    """Compares the best of several trials of two ranks each with one process at its parameters."""
    study = shared("digits", direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))

    def objective(trial: rueda.optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 0.1, 4.0, log=True)
        team = trial.process_set
        return accuracy_of(trained_by(team.rank(), team.size(), rate, team))

    rueda.optuna.optimize(study, objective, n_trials=6, ranks_per_trial=2)
    rate = study.best_params["rate"]
    alone = [rueda.add_process_set([rank]) for rank in range(rueda.size())]
    one = accuracy_of(trained_by(0, 1, rate, alone[rueda.rank()]))
    require_as_good(study.best_value, one)
    for each in alone:
        rueda.remove_process_set(each)


def check_whoever_is_free_takes_the_next_trial() -> None:
    """One trial lasts until the other two ranks have done all the others."""
    study = shared("pace")
    done: list[int] = []

    def objective(trial: rueda.optuna.Trial) -> float:
        deadline = time.monotonic() + 60
        if trial.number == 0:
            others: list[Any] = []
            while len(others) < 6:
                assert time.monotonic() < deadline, "the others have not trained 6 trials"
                others = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
                time.sleep(0.01)
        done.append(trial.number)
        return 0.0

    rueda.optuna.optimize(study, objective, n_trials=7)
    counts = rueda.allgather_object(sorted(done))
    assert sorted(counts, key=len) == [[0], [0], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]]
    still_works()


def fails(
    name: str, objective: Callable[[Any], Any], *parts: str, kind: Any, **options: Any
) -> Any:
    """The error must come on all four ranks, and the failed trials must be recorded."""
    study = shared(name)
    with raises(kind, *parts):
        rueda.optuna.optimize(study, objective, n_trials=4, **options)
    failed = [t for t in study.get_trials() if t.state == optuna.trial.TrialState.FAIL]
    assert failed
    assert all(t.state.is_finished() for t in study.get_trials())
    still_works()
    return failed


def check_an_error_of_one_rank_reaches_those_that_wait_for_it() -> None:
    def objective(trial: rueda.optuna.Trial) -> float:
        trial.suggest_float("x", 0, 1)
        if trial.process_set.rank() == 1:
            raise KeyError(f"a bad row in trial {trial.number}")
        rueda.allreduce(np.ones(3), "gradient", process_set=trial.process_set)
        raise AssertionError("an allreduce went on without a rank")

    fails("waiting in a collective", objective, "a bad row in trial", kind=KeyError)


def check_an_error_of_the_leader_reaches_those_that_ask() -> None:
    def objective(trial: rueda.optuna.Trial) -> float:
        if trial.process_set.rank() == 0:
            raise ArithmeticError("the leader divides by nothing")
        trial.suggest_float("x", 0, 1)
        raise AssertionError("suggested without the leader")

    try:
        rueda.optuna.optimize(shared("asking"), objective, n_trials=1)
    except ArithmeticError as error:
        causes = rueda.allgather_object(str(error.__cause__))
        where = causes.index("None")  # the rank that raised it
        assert where in (0, 2)  # a leader
        for cause in causes[:where] + causes[where + 1 :]:
            assert f"on rank {where}:" in cause, cause
            assert "the leader divides by nothing" in cause, cause
    else:
        raise AssertionError("no error")
    still_works()


def check_a_bad_range_is_the_same_error_on_all() -> None:
    def objective(trial: rueda.optuna.Trial) -> float:
        try:
            return trial.suggest_float("x", 2.0, 1.0)
        except ValueError as error:
            seen.append(repr(error))
            raise

    seen: list[str] = []
    fails("range", objective, "low", "high", kind=ValueError)
    everyone = [each for texts in rueda.allgather_object(seen) for each in texts]
    assert len(everyone) in (2, 4)  # the other team may not have got a trial any more
    assert len(set(everyone)) == 1
    assert everyone[0].startswith("ValueError(")


def check_ranks_that_ask_for_different_things_are_told() -> None:
    def objective(trial: rueda.optuna.Trial) -> float:
        return trial.suggest_float(f"x{trial.process_set.rank()}", 0, 1)

    words = ["calls suggest_float('x0', 0, 1", "calls suggest_float('x1', 0, 1"]
    fails("names", objective, *words, kind=rueda.MismatchError)

    def leaves_early(trial: rueda.optuna.Trial) -> float:
        if trial.process_set.rank() == 0:
            return 1.0
        return trial.suggest_float("y", 0, 1)

    words = ["returns from the objective", "calls suggest_float('y', 0, 1"]
    fails("returns", leaves_early, *words, kind=rueda.MismatchError)


def relu(x: float) -> float:
    return max(x, 0.0)


class Scaled:
    """Shown with its address."""

    def __call__(self, x: float) -> float:
        return 2 * x


def check_choices_whose_text_differs_between_ranks() -> None:
    """By addresses, or by the order of a set's elements."""
    functions = [relu, abs, Scaled(), Scaled().__call__]
    words = [frozenset({"red", "green", "blue", "white"}), (frozenset("abcdefgh"), relu)]
    seen: list[Any] = []

    def objective(trial: rueda.optuna.Trial) -> float:
        function = trial.suggest_categorical("function", functions)
        seen.append(trial.suggest_categorical("words", words))
        return float(function(trial.number))

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Optuna's, of choices that it cannot store
        rueda.optuna.optimize(study, objective, n_trials=12, ranks_per_trial=4)
    assert len(seen) == 12
    assert {each == words[0] for each in seen} == {True, False}
    still_works()

    def differs(trial: rueda.optuna.Trial) -> float:
        here = "abc" if trial.process_set.rank() else "abd"
        trial.suggest_categorical("letters", [frozenset(here), relu])
        return 0.0

    parts = ["frozenset({'a', 'b', 'd'}), <function relu>", "frozenset({'a', 'b', 'c'})"]
    fails("sets", differs, *parts, kind=rueda.MismatchError)


def check_ranks_that_leave_while_others_are_in_a_collective_are_told() -> None:
    for leaver in (0, 1):
        for prunes, does in ((True, "raises TrialPruned"), (False, "returns from the objective")):

            def leaves(
                trial: rueda.optuna.Trial, leaver: int = leaver, prunes: bool = prunes
            ) -> float:
                team = trial.process_set
                if team.rank() == leaver:
                    if prunes:
                        raise optuna.TrialPruned
                    return 1.0
                return float(rueda.allreduce(np.ones(1), "loss", process_set=team)[0])

            words = [f"{does}", "waits in a collective of trial.process_set"]
            name = f"rank {leaver} {does}"
            fails(name, leaves, *words, kind=rueda.MismatchError)


def ends_all(kind: type[BaseException], culprit: int) -> Any:
    if rueda.rank() == culprit:
        return raises(kind)
    return raises(rueda.ShutdownError, "has left rueda.optuna.optimize()")


def check_a_rank_that_is_interrupted_ends_all_teams() -> None:
    """By what is no `Exception`, which the program catches: no rank may wait for it."""
    for culprit in range(4):
        for number, kind in enumerate((KeyboardInterrupt, SystemExit)):

            def objective(
                trial: rueda.optuna.Trial, culprit: int = culprit, kind: type = kind
            ) -> float:
                x = trial.suggest_float("x", 0, 1)
                if rueda.rank() == culprit:
                    raise kind
                return float(rueda.allreduce(np.full(1, x), process_set=trial.process_set)[0])

            study = shared(f"interrupts {culprit} {number}")
            everything = (Exception,) if culprit % 2 else ()
            began = time.monotonic()
            with ends_all(kind, culprit):
                rueda.optuna.optimize(study, objective, catch=everything)
            assert time.monotonic() - began < 20  # and not only after RUEDA_SHUTDOWN_TIMEOUT
            still_works()


def check_an_interrupt_between_trials_ends_all_teams() -> None:
    for culprit in (0, 2):

        def interrupts(*_: Any, culprit: int = culprit) -> None:
            if rueda.rank() == culprit:
                raise KeyboardInterrupt

        began = time.monotonic()
        with ends_all(KeyboardInterrupt, culprit):
            rueda.optuna.optimize(
                shared(f"callback {culprit}"), lambda _: 1.0, callbacks=[interrupts]
            )
        assert time.monotonic() - began < 20
        still_works()


def check_an_error_that_an_objective_keeps_fails_the_trial() -> None:
    def objective(trial: rueda.optuna.Trial) -> float:
        if trial.process_set.rank() == 1:
            raise OSError("no such image")
        try:
            trial.suggest_float("x", 0, 1)
        except OSError:
            return 1.0
        raise AssertionError("suggested without a rank")

    fails("kept", objective, "no such image", kind=OSError)


def check_a_storage_that_is_gone_ends_the_study_on_all_ranks() -> None:
    """In the middle of a trial: its end cannot be recorded, or the storage not even read."""

    def gone(*_: Any) -> None:
        raise OSError("the disk is gone")

    for name, is_read in (("full", True), ("away", False)):
        study = shared(name)

        def objective(
            trial: rueda.optuna.Trial, study: Any = study, is_read: bool = is_read
        ) -> float:
            if trial.number >= 2 and trial.process_set.rank() == 0:
                study._storage._backend.append_logs = gone
                if not is_read:
                    study._storage._backend.read_logs = gone
            trial.suggest_float("x", 0, 1)
            assert trial.number < 2, "a value was suggested that cannot be recorded"
            return 0.0

        with raises(OSError, "the disk is gone"):
            rueda.optuna.optimize(study, objective, n_trials=10_000)
        still_works()


def check_an_assertion_of_a_callback_is_its_own() -> None:
    def assert_false(*_: Any) -> None:
        try:
            raise KeyError("no such key")
        except KeyError:
            raise AssertionError("the callback's own")  # noqa: B904 - what it covers is not what counts

    with raises(AssertionError, "the callback's own"):
        rueda.optuna.optimize(
            shared("asserts"), lambda _: 1.0, n_trials=10_000, callbacks=[assert_false]
        )
    still_works()


def check_what_is_caught_does_not_end_the_study() -> None:
    class Local(Exception):
        """Cannot be pickled."""

    def objective(trial: rueda.optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        if trial.number % 2 and trial.process_set.rank() == 1:
            raise ValueError("not this one")
        if trial.number == 2:
            raise Local("told as text")
        rueda.barrier(trial.process_set)
        return x

    study = shared("caught")
    heard: list[int] = []
    rueda.optuna.optimize(
        study,
        objective,
        n_trials=8,
        catch=(ValueError, Local),
        callbacks=[lambda _, trial: heard.append(trial.number)],
    )
    failed = [t.number for t in study.get_trials() if t.state == optuna.trial.TrialState.FAIL]
    assert failed == [1, 2, 3, 5, 7]
    everyone = rueda.allgather_object(heard)
    assert sorted(everyone[0] + everyone[2]) == list(range(8))
    assert everyone[1] == everyone[3] == []
    still_works()


class Diverged(Exception):
    """Ordinary, but pickle calls the constructor with the text alone."""

    def __init__(self, loss: float, step: int) -> None:
        super().__init__(f"diverged to {loss} in step {step}")
        self.step = step


class Wordless(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


def check_what_no_pickle_carries_is_caught_by_its_class() -> None:
    kinds: dict[int, Exception] = {1: Diverged(3.5, 7), 2: Wordless()}
    seen: list[tuple[int, Exception]] = []

    def objective(trial: rueda.optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 1)
        if trial.number in kinds and trial.process_set.rank() == 1:
            raise kinds[trial.number]
        try:
            rueda.barrier(trial.process_set)
            trial.report(x, 0)
        except rueda.ShutdownError:
            pass  # the trial's end tells what has happened
        except Exception as error:
            seen.append((trial.number, error))
            raise
        return x

    study = shared("classes")
    rueda.optuna.optimize(study, objective, n_trials=8, catch=(Diverged, Wordless))
    failed = [t.number for t in study.get_trials() if t.state == optuna.trial.TrialState.FAIL]
    assert failed == [1, 2], failed

    def diverges(trial: rueda.optuna.Trial) -> float:
        raise Diverged(0.5, trial.process_set.rank())

    with raises(Diverged, "diverged to 0.5 in step"):
        rueda.optuna.optimize(shared("diverges"), diverges, n_trials=4)
    still_works()


class Unsendable(Exception):
    """Keeps what no other rank can get."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def raised_by(study: optuna.Study, objective: Callable[[Any], Any]) -> Exception:
    try:
        rueda.optuna.optimize(study, objective, n_trials=10_000)
    except Exception as error:
        return error
    raise AssertionError("no error")


def check_the_rank_that_raised_an_error_gets_the_error_itself() -> None:
    """Whether it leads its team or not; the others get what can be sent."""

    class Local(Exception):
        """Cannot be pickled."""

    for culprit in range(4):
        for kind, sent in ((Unsendable, Unsendable), (Local, rueda.RuedaError)):
            own = kind(f"only on rank {culprit}")

            def objective(_: Any, culprit: int = culprit, own: Exception = own) -> float:
                if rueda.rank() == culprit:
                    raise own
                return 0.0

            error = raised_by(shared(f"own {culprit} {kind.__name__}"), objective)
            if rueda.rank() == culprit:
                assert error is own, repr(error)
                assert error.__cause__ is None
            else:
                assert type(error) is sent, repr(error)
                assert f"only on rank {culprit}" in str(error)
                assert not hasattr(error, "lock")
                assert f"on rank {culprit}:" in str(error.__cause__)
            still_works()


def check_an_error_that_all_ranks_raise_is_each_ranks_own() -> None:
    """In the team whose error is reported."""
    own = ValueError("the same everywhere")

    def objective(_: Any) -> float:
        raise own

    error = raised_by(shared("own of all"), objective)
    assert str(error) == str(own)
    are_own = rueda.allgather_object(error is own)
    assert are_own in ([True, True, False, False], [False, False, True, True]), are_own
    still_works()


def check_a_later_error_of_the_leader_is_not_taken_for_a_followers_earlier_one() -> None:
    """The first is caught, and then a callback fails."""

    def objective(_: Any) -> float:
        raise ValueError("caught")

    def fails(*_: Any) -> None:
        raise ValueError("of a callback")

    with raises(ValueError, "of a callback"):
        rueda.optuna.optimize(
            shared("later"), objective, n_trials=10_000, catch=ValueError, callbacks=[fails]
        )
    still_works()


def check_stop_in_a_callback_stops_all() -> None:
    study = shared("stop")
    rueda.optuna.optimize(
        study, lambda trial: trial.suggest_float("x", 0, 1), callbacks=[lambda s, _: s.stop()]
    )
    assert 1 <= len(study.get_trials()) <= 4


def check_timeout_begins_no_trial_any_more() -> None:
    study = shared("timeout")

    def objective(trial: rueda.optuna.Trial) -> float:
        time.sleep(0.05)
        return 0.0

    rueda.optuna.optimize(study, objective, timeout=0.3)
    begun = study.get_trials()
    assert all(t.state == optuna.trial.TrialState.COMPLETE for t in begun)
    rueda.optuna.optimize(study, objective, n_trials=3, timeout=0)
    assert len(study.get_trials()) == len(begun)
    still_works()


@contextmanager
def refused(*parts: str) -> Any:
    with raises(rueda.InvalidArgumentError, *parts):
        yield
    still_works()


def never(_: Any) -> float:
    raise AssertionError("a trial has begun")


def check_what_cannot_work_is_told_before_anything_begins() -> None:
    study = shared("refused")
    begin = rueda.optuna.optimize
    with refused("4 ranks", "ranks_per_trial=3"):
        begin(study, never, n_trials=1, ranks_per_trial=3)
    with refused("ranks_per_trial=0"):
        begin(study, never, n_trials=1, ranks_per_trial=0)
    with refused("n_trials=0"):
        begin(study, never, n_trials=0)
    with refused("n_trials='many'"):
        begin(study, never, n_trials="many")
    with refused("timeout=-1.0"):
        begin(study, never, timeout=-1)
    with refused("n_trials=5", "on rank 0", "n_trials=6", "on rank 2"):
        begin(study, never, n_trials=6 if rueda.rank() == 2 else 5)
    with refused("on rank 3", "optuna.Study"):
        begin(None if rueda.rank() == 3 else study, never, n_trials=1)
    for wrong in (None, "objective"):
        with refused("on rank 2", f"objective={wrong!r} cannot be called"):
            begin(study, wrong if rueda.rank() == 2 else never, n_trials=1)
    for catch in ("ValueError", [ValueError, "KeyError"], 5):
        with refused("catch=", "classes of exceptions"):
            begin(study, never, n_trials=1, catch=catch)
    for callbacks in (5, never, [never, 5]):
        with refused("callbacks="):
            begin(study, never, n_trials=1, callbacks=callbacks)
    with refused("n_trials=True"):
        begin(study, never, n_trials=True)
    assert study.get_trials() == []


def check_studies_that_are_not_one_are_refused() -> None:
    with refused("rank 1", "JournalStorage", "in memory"):
        rueda.optuna.optimize(optuna.create_study(), never, n_trials=1)
    with refused("rank 1", "JournalStorage"):
        rueda.optuna.optimize(shared(f"of rank {rueda.rank()}"), never, n_trials=1)
    study = shared("deleted")
    rueda.barrier(name="opened")
    if rueda.rank() == 3:
        optuna.delete_study(study_name="deleted", storage=study._storage)
    rueda.barrier(name="deleted")
    with refused("'deleted'", "rank 0", "JournalStorage"):
        rueda.optuna.optimize(study, never, n_trials=1)
    study = shared("gone")
    rueda.barrier(name="opened")
    if rueda.rank() == 0:
        (FOLDER / "gone.log").unlink()
    rueda.barrier(name="gone")
    with refused("JournalStorage"):
        rueda.optuna.optimize(study, never, n_trials=1)


def check_another_job_may_begin_on_the_same_study_at_once() -> None:
    """The other job overwrites what this job's ranks are about to read."""
    study = shared("of two jobs")
    times = 2
    mark = study.set_user_attr

    def mark_and_overwrite(key: str, value: Any) -> None:
        nonlocal times
        mark(key, value)
        if times:
            times -= 1
            mark(key, "of another job")

    study.set_user_attr = mark_and_overwrite  # type: ignore[method-assign]
    rueda.optuna.optimize(study, lambda trial: trial.suggest_float("x", 0, 1), n_trials=4)
    assert times == (0 if rueda.rank() == 0 else 2)
    assert len(study.get_trials()) == 4


def check_other_jobs_that_keep_beginning_on_the_study() -> None:
    """Ranks cannot tell if they share one study then, so no team may go on."""
    for per_trial in (2, 4):
        study = shared("contended")
        write, words = study.set_user_attr, []

        def write_twice(name: str, word: str, write: Any = write, words: Any = words) -> None:
            write(name, word)
            write(name, "of another job")
            words.append(word)

        study.set_user_attr = write_twice  # type: ignore[method-assign]
        agreement._MAX_BACKOFF = 0.01
        with raises(rueda.TimeoutError, "'contended'", "20 attempts", "other jobs keep starting"):
            rueda.optuna.optimize(study, lambda trial: 0.0, n_trials=4, ranks_per_trial=per_trial)
        assert len(words) == (20 if rueda.rank() == 0 else 0)
        assert not study.trials
    still_works()


def check_a_study_in_memory_serves_all_ranks_as_one_team() -> None:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))

    def objective(trial: rueda.optuna.Trial) -> float:
        return (trial.suggest_float("x", -1, 1) - 0.25) ** 2

    rueda.optuna.optimize(study, objective, n_trials=12, ranks_per_trial=4)
    alone = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    alone.optimize(lambda trial: (trial.suggest_float("x", -1, 1) - 0.25) ** 2, n_trials=12)
    assert [t.params for t in study.get_trials()] == [t.params for t in alone.get_trials()]
    assert study.best_trial.number == alone.best_trial.number


def check_trials_of_one_rank() -> None:
    study = shared("single", sampler=optuna.samplers.RandomSampler(seed=1))
    rueda.optuna.optimize(
        study, lambda trial: trial.suggest_float("x", 0, 1), n_trials=6, ranks_per_trial=1
    )
    assert len(study.get_trials()) == 6
    # Samplers that are copies of each other would suggest the same values.
    assert len({t.params["x"] for t in study.get_trials()}) == 6


if __name__ == "__main__":
    del sys.argv[1]
    run(globals())
