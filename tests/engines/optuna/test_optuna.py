"""rueda.optuna in Optuna's own environment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.environments import ROOT, STALLS, Engine
from launching import Job
from one_run import OneRun, each_check_of

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "check_optuna.py"


@pytest.fixture(scope="module", params=["auto", "tcp"])
def ran(
    engine: Engine,
    digits: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> OneRun:
    extra = {**STALLS, **digits, "RUEDA_TRANSPORT": request.param}
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
    """Even if `catch` has every exception: no further trial could be trained."""
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


AT_ONCE = """
import sys, time
from pathlib import Path
import numpy as np
import optuna, rueda, rueda.optuna

folder, kind, own, other = Path(sys.argv[1]), *sys.argv[2:]

def appears(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.01)

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    loss = rueda.allreduce(np.array([x]), "loss", process_set=trial.process_set)
    (folder / own).touch()
    appears(folder / other)
    trial.set_user_attr("job", own)
    return float(loss[0])

rueda.init()
optuna.logging.set_verbosity(optuna.logging.ERROR)
if kind == "journal":
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal"))
    storage = optuna.storages.JournalStorage(backend)
else:
    def opened():
        patient = {"connect_args": {"timeout": 60}}  # four processes wait for one lock
        return optuna.storages.RDBStorage(f"sqlite:///{folder}/database", engine_kwargs=patient)
    if own == "a" and rueda.rank() == 0:  # one process makes the tables
        storage = opened()
        (folder / "tables").touch()
    else:
        appears(folder / "tables")
        storage = opened()
for name, per_trial in (("of all", 2), (f"of {own}", 1), ("of all", 1)):
    study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
    rueda.optuna.optimize(study, objective, n_trials=6, ranks_per_trial=per_trial)
rueda.barrier()
mine = [t for t in study.get_trials() if t.user_attrs.get("job") == own]
assert len(mine) == 12
assert all(t.state.name == "COMPLETE" and t.value == t.params["x"] for t in mine)
assert len(optuna.load_study(study_name=f"of {own}", storage=storage).trials) == 6
print("done", flush=True)
"""


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_two_jobs_at_once_on_one_storage(engine: Engine, tmp_path: Path, kind: str) -> None:
    """Also on one study: each job does the number of trials it was asked for."""
    jobs = [[str(tmp_path), kind, *names] for names in (("a", "b"), ("b", "a"))]
    with (
        Job(AT_ONCE, 2, jobs[0], STALLS, engine.python) as first,
        Job(AT_ONCE, 2, jobs[1], STALLS, engine.python) as second,
    ):
        for job in (first, second):
            ended = job.wait()
            assert [rank.output for rank in ended] == ["done\n"] * 2, job.report()


def test_the_example_of_the_page(engine: Engine, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "optuna.md").read_text()
    example = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    script = tmp_path / "search.py"
    script.write_text(example)
    outputs = engine.run(script, 4, [], STALLS, folder=tmp_path)
    best = {re.findall(r"^best: .*", output, re.MULTILINE)[0] for output in outputs}
    assert len(best) == 1, best


IS_LOOKED_AT = """
import sys, time
from pathlib import Path
import numpy as np
import optuna, rueda, rueda.optuna

folder = Path(sys.argv[1])

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    loss = float(rueda.allreduce(np.array([x]), "loss", process_set=trial.process_set)[0])
    trial.report(loss, 0)
    deadline = time.monotonic() + 90
    while trial.number == 2 and not (folder / "looked").exists():
        assert time.monotonic() < deadline, "nobody looks"
        time.sleep(0.05)
    return loss

rueda.init()
optuna.logging.set_verbosity(optuna.logging.ERROR)
backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.log"))
study = optuna.create_study(
    study_name="search", storage=optuna.storages.JournalStorage(backend), load_if_exists=True
)
print("study", flush=True)
rueda.optuna.optimize(study, objective, n_trials=4, ranks_per_trial=2)
print([trial.value for trial in study.get_trials()], flush=True)
"""


@contextlib.contextmanager
def dashboard_of(engine: Engine, folder: Path) -> Iterator[str]:
    """Runs the documented dashboard command on a free port; yields its address."""
    page = (ROOT / "docs" / "optuna.md").read_text()
    (line,) = re.findall(r"^optuna-dashboard .*", page, re.MULTILINE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [engine.python.with_name("optuna-dashboard"), "--port", f"{port}", *line.split()[1:]]
    with (
        (folder / "dashboard.log").open("w") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def answer_of(address: str) -> Any:
    """Returns the answer of a server that may still be starting."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def trials_shown(address: str, states: list[str]) -> list[dict[str, Any]]:
    """Returns the only study's trials once in these states: the dashboard polls rarely."""
    deadline = time.monotonic() + 90
    shown: list[dict[str, Any]] = []
    while [trial["state"] for trial in shown] != states:
        assert time.monotonic() < deadline, shown
        time.sleep(0.1)
        for study in answer_of(f"{address}/api/studies")["study_summaries"]:
            told = answer_of(f"{address}/api/studies/{study['study_id']}")
            assert told["name"] == "search"
            shown = told["trials"]
    return shown


def test_optunas_dashboard_shows_the_trials_while_ranks_train(
    engine: Engine, tmp_path: Path
) -> None:
    with Job(IS_LOOKED_AT, 2, [str(tmp_path)], STALLS, engine.python) as job:
        job.wait_for_output(0, "study")
        with dashboard_of(engine, tmp_path) as address:
            trials_shown(address, ["Complete", "Complete", "Running"])
            (tmp_path / "looked").touch()
            ended = job.wait()
            assert all(rank.returncode == 0 for rank in ended), job.report()
            trials = trials_shown(address, ["Complete"] * 4)
    values = [trial["values"][0] for trial in trials]
    assert str(values) in ended[0].output
    for trial, value in zip(trials, values, strict=True):
        assert trial["params"][0]["param_internal_value"] == value
        assert trial["intermediate_values"] == [{"step": 0, "value": value}]
