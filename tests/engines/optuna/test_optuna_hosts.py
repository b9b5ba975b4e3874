"""rueda.optuna on two hosts of two ranks each, started by Slurm or by a launcher per host."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.environments import STALLS, Engine, variables_of
from net.lab import Lab
from net.lab.fixture import or_skip
from net.pods import Pods
from net.slurm import Slurm

SEARCH = """
import sys, rueda, search
rueda.init(init_timeout=60)
assert (rueda.size(), rueda.cross_size()) == (4, 2)
trained = rueda.allgather_object(search.searches(sys.argv[1]))
search.require_search(sys.argv[1], trained)
print("searched\\n", end="")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with or_skip():
        made = Lab(2)
        made.up()
    yield made
    made.down()


@pytest.fixture
def variables(digits: dict[str, str]) -> dict[str, str]:
    return variables_of({**STALLS, **digits})


def test_a_search_under_srun(
    engine: Engine, lab: Lab, variables: dict[str, str], tmp_path: Path
) -> None:
    with or_skip():
        made = Slurm(lab, tmp_path)
    with made as slurm:
        line = [str(engine.python), "-c", SEARCH, str(tmp_path / "study.log")]
        ran = slurm.run(
            "srun",
            "-N2",
            "--ntasks-per-node=2",
            *line,
            **variables,
            RUEDA_SECRET=secrets.token_hex(32),
        )
        assert ran.returncode == 0, ran.stderr + slurm.logs()
    assert ran.stdout.count("searched") == 4


def test_a_search_in_pods(
    engine: Engine, lab: Lab, variables: dict[str, str], tmp_path: Path
) -> None:
    pods = Pods(lab, tmp_path)
    line = [str(engine.python), "-c", SEARCH, str(tmp_path / "study.log")]
    started = [
        pods.start(f"h{n}", "--nodes", "2", "--node-rank", str(n), program=line, **variables)
        for n in range(2)
    ]
    try:
        written = [launcher.communicate(timeout=120) for launcher in started]
    finally:
        pods.close()
    assert [launcher.returncode for launcher in started] == [0, 0], written
    assert [out.count("searched") for out, _ in written] == [2, 2]
    pods.looks.wait_until_gone()
