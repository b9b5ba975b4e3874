"""rueda.optuna in Optuna's own environment."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from engines.environments import ROOT, STALLS, Engine
from launching import Job
from one_run import OneRun, each_check_of

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "check_optuna.py"


@pytest.fixture(scope="module", params=["auto", "tcp"])
def ran(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> OneRun:
    extra = {**STALLS, "RUEDA_TRANSPORT": request.param}
    return engine.run_checks(SCRIPT, 4, [str(tmp_path_factory.mktemp("checks"))], extra, speakers=1)


@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)


LOSES_A_RANK = """
import os, sys, time
import numpy as np
import optuna, rueda, rueda.optuna

numbers = []

def objective(trial):
    numbers.append(trial.number)
    trial.suggest_float("x", 0, 1)
    print("trains", trial.number, flush=True)
    if rueda.rank() == 1:
        time.sleep(600)
    rueda.allreduce(np.ones(3), "gradient", process_set=trial.process_set)
    return 0.0

rueda.init()
optuna.logging.set_verbosity(optuna.logging.ERROR)
storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(sys.argv[1]))
study = optuna.create_study(storage=storage, study_name="lost", load_if_exists=True)
try:
    rueda.optuna.optimize(study, objective, n_trials=10_000, catch=(Exception,))
except rueda.PeerLostError as error:
    print("lost", error.peer, study.get_trials()[numbers[-1]].state.name, flush=True)
    os._exit(0)
"""


def test_a_rank_that_is_killed_ends_all_teams(engine: Engine, tmp_path: Path) -> None:
    """Also where `catch` has every exception: no trial could be trained any more."""
    journal = str(tmp_path / "study.log")
    with Job(LOSES_A_RANK, 4, [journal], STALLS, python=engine.python) as job:
        for rank in range(4):
            job.wait_for_output(rank, "trains")
        os.kill(job.ranks[1].pid, signal.SIGKILL)
        ended = job.wait()
        for rank in (0, 2, 3):
            assert "lost 1 " in ended[rank].output, job.report()
        assert "lost 1 FAIL" in ended[0].output, job.report()


GOES_ON = """
import os, signal, sys
import numpy as np
import optuna, rueda, rueda.optuna
from rueda import _native

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    if trial.number == 2 and rueda.size() == 4 and trial.process_set.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(rueda.allreduce(np.array([x]), "loss", process_set=trial.process_set)[0])

rueda.init(recovery="on")
optuna.logging.set_verbosity(optuna.logging.ERROR)
storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(sys.argv[1]))
study = optuna.create_study(storage=storage, study_name="goes on", load_if_exists=True)
try:
    rueda.optuna.optimize(study, objective, n_trials=10_000)
except rueda.PeerLostError:
    rueda.recover()
assert _native.process_set_ids() == [0], _native.process_set_ids()
rueda.optuna.optimize(study, objective, n_trials=4, ranks_per_trial=3)
assert _native.process_set_ids() == [0], _native.process_set_ids()
done = [trial for trial in study.get_trials() if trial.state.name == "COMPLETE"]
print("done", len(done) >= 4, "on", rueda.size(), flush=True)
"""


def test_those_that_are_left_search_on_without_anything_of_the_broken_world(
    engine: Engine, tmp_path: Path
) -> None:
    with Job(GOES_ON, 4, [str(tmp_path / "study.log")], STALLS, python=engine.python) as job:
        ended = job.wait()
        assert sum(each.output.endswith("done True on 3\n") for each in ended) == 3, job.report()
        assert sorted(each.returncode for each in ended) == [-signal.SIGKILL, 0, 0, 0]


def test_the_example_of_the_page(engine: Engine, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "optuna.md").read_text()
    example = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    script = tmp_path / "search.py"
    script.write_text(example)
    outputs = engine.run(script, 4, [], STALLS, folder=tmp_path)
    best = {re.findall(r"^best: .*", output, re.MULTILINE)[0] for output in outputs}
    assert len(best) == 1, best
