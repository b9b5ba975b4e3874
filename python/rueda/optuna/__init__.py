"""Optuna studies whose trials run in parallel, each on several ranks.

Example::

    import optuna
    import rueda
    import rueda.optuna

    rueda.init()
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("study.log"))
    study = optuna.create_study(study_name="digits", storage=storage, load_if_exists=True)
    rueda.optuna.optimize(study, objective, n_trials=30, ranks_per_trial=2)
    print(study.best_params)

docs/optuna.md has a complete example.
"""

from rueda.engines.versions import Needs as _Needs

_needs = _Needs(
    "rueda.optuna",
    "Optuna",
    "optuna",
    (5,),  # the first whose trials have constraints
    "pip install 'optuna>=5'",
    newest=(5, 0),
)
_needs.require()

with _needs.understood():
    from rueda.optuna.optimization import optimize
    from rueda.optuna.trial import Trial

__all__ = ["Trial", "optimize"]
