"""A search with rueda.optuna on ranks of another engine: two ranks train the digits per trial."""

from __future__ import annotations

from typing import Any

import optuna
import rueda
import rueda.optuna
from digits import accuracy_of, trained_by

TRIALS = 4


def _study(journal: str) -> optuna.Study:
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(journal)  # every rank opens it itself
    )
    return optuna.create_study(
        storage=storage, study_name="digits", load_if_exists=True, direction="maximize"
    )


def searches(journal: str) -> dict[int, tuple[float, tuple[int, ...]]]:
    """Returns rate and ranks of this rank's trials. ``journal``: a file that all ranks reach."""
    trained: dict[int, tuple[float, tuple[int, ...]]] = {}

    def objective(trial: rueda.optuna.Trial) -> float:
        rate = trial.suggest_float("rate", 0.5, 4.0, log=True)
        ranks = trial.process_set
        trained[trial.number] = (rate, tuple(ranks.ranks))
        return accuracy_of(trained_by(ranks.rank(), ranks.size(), rate, ranks))

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rueda.optuna.optimize(_study(journal), objective, n_trials=TRIALS, ranks_per_trial=2)
    return trained


def require_search(journal: str, trained: list[dict[int, tuple[float, tuple[int, ...]]]]) -> None:
    """``trained``: the results of :func:`searches` on four ranks, by rank."""
    trials: list[Any] = _study(journal).get_trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * TRIALS
    recorded = {trial.number: trial.params["rate"] for trial in trials}
    for rank, mine in enumerate(trained):
        for number, (rate, ranks) in mine.items():
            assert rate == recorded[number], (rank, number)  # bit for bit
            assert ranks == ((0, 1) if rank < 2 else (2, 3))
    assert trained[0] == trained[1]
    assert trained[2] == trained[3]
    assert trained[0].keys() | trained[2].keys() == recorded.keys()
    assert max(trial.value for trial in trials) > 85
