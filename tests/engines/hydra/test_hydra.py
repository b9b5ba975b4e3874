"""rueda.init() under MPICH's and Intel MPI's mpiexec, without MPI: the ranks meet through PMI."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from engines.environments import STALLS, Engine, find, variables_of
from launching import environment
from net.lab import Lab
from net.lab.fixture import MakeLab, make_lab

__all__ = ["make_lab"]

SCRIPT = Path(__file__).with_name("check_hydra.py")
# How each is told the program that starts processes on another host, like ssh.
AGENT = {
    "hydra": ["-launcher", "ssh", "-launcher-exec"],
    "intelmpi": ["-bootstrap", "ssh", "-bootstrap-exec"],
}


@pytest.fixture(scope="module", params=AGENT)
def engine(request: pytest.FixtureRequest) -> Engine:
    """The environment of each of the two process managers."""
    found = find(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def line_of(engine: Engine, options: Sequence[str], *arguments: str) -> list[str]:
    """Returns the command line that starts the ranks."""
    mpiexec = engine.python.with_name("mpiexec.hydra")
    return [str(mpiexec), *options, str(engine.python), str(SCRIPT), *arguments]


def launcher(engine: Engine, ranks: int) -> list[str]:
    """Returns `rueda run`, as far as the program."""
    return [str(engine.python), "-m", "rueda", "run", "--no-mpi", "-np", str(ranks)]


def run(line: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Runs ranks under Hydra to completion."""
    variables = environment(variables_of({**STALLS, **more}))
    return subprocess.run(
        line, env=variables, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_meet_through_pmi_again_and_again(engine: Engine, size: int) -> None:
    ran = run(line_of(engine, ["-n", str(size)]))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(f"met {size} on 1 hosts") == size
    assert ran.stderr == ""


def test_ranks_of_two_hosts_meet_and_train(
    engine: Engine, digits: dict[str, str], make_lab: MakeLab
) -> None:
    lab: Lab = make_lab(2)
    agent = [*AGENT[engine.name], str(lab.agent)]
    line = line_of(engine, ["-hosts", "h0,h1", "-ppn", "2", "-n", "4", *agent], "trains")
    ran = run(lab.inside("h0", *line), **digits)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("met 4 on 2 hosts") == 4


def test_within_a_rank_of_rueda_run_its_ranks_are_a_world(engine: Engine) -> None:
    ran = run([*launcher(engine, 1), *line_of(engine, ["-n", "2"])])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("met 2 on 1 hosts") == 2


def test_within_one_of_its_ranks_rueda_run_starts_a_world(engine: Engine) -> None:
    program = "import rueda; rueda.init(); print(f'met {rueda.size()}\\n', end='')"
    outer = line_of(engine, ["-n", "2"])[: -len(["python", "script"])]
    ran = run([*outer, *launcher(engine, 2), str(engine.python), "-c", program])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("met 2") == 4


def test_a_rank_that_fails_ends_the_job(engine: Engine) -> None:
    ran = run(line_of(engine, ["-n", "2"], "fails"))
    assert ran.returncode != 0
    assert "ValueError: a bad row" in ran.stderr
    assert "met" not in ran.stdout
