"""Rueda under a real Slurm on two hosts: plain srun, and one launcher per node."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rueda_command import LAUNCHER

from .lab import Lab
from .lab.fixture import or_skip
from .slurm import Slurm

MEET = """
import os, rueda
rueda.init(init_timeout=60)
own = os.environ["SLURM_STEP_ID"], os.environ.get("SLURM_RESTART_COUNT")
found = rueda.allgather_object((*own, os.uname().nodename))
assert [part[:2] for part in found] == [own] * rueda.size(), found
print("met", rueda.size(), sorted({part[2] for part in found}), own, "\\n", end="")
"""

ON_RANKS = Path(__file__).resolve().parents[1] / "engines" / "on_ranks"
TRAIN = """
import rueda, digits
rueda.init(init_timeout=60)
digits.require_trained_as_by_one()
print("trained on", rueda.size(), "of", rueda.cross_size(), "hosts\\n", end="")
"""


@pytest.fixture(scope="module")
def slurm(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Slurm on two of the lab's hosts."""
    with or_skip():
        made = Slurm(lab, tmp_path_factory.mktemp("slurm"))
    with made:
        yield made


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A program whose ranks meet and print where they are."""
    path = tmp_path / "meet.py"
    path.write_text(MEET)
    return str(path)


def secret() -> dict[str, str]:
    """Returns a secret as a user makes one for a job."""
    return {"RUEDA_SECRET": secrets.token_hex(32)}


def test_plain_srun_on_two_nodes(slurm: Slurm, script: str) -> None:
    ran = slurm.run("srun", "-N2", "-n4", sys.executable, script, **secret())
    assert ran.returncode == 0, ran.stderr + slurm.logs()
    assert ran.stdout.count("met 4 ['h0', 'h1']") == 4


def test_digits_are_trained_on_two_nodes(slurm: Slurm) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn, which has the digits, is not installed")
    line = ["srun", "-N2", "--ntasks-per-node=2", sys.executable, "-c", TRAIN]
    ran = slurm.run(*line, PYTHONPATH=str(ON_RANKS), **secret())
    assert ran.returncode == 0, ran.stderr + slurm.logs()
    assert ran.stdout.count("trained on 4 of 2 hosts") == 4


def test_plain_srun_on_one_node_needs_no_secret(slurm: Slurm, script: str) -> None:
    ran = slurm.run("srun", "-N1", "-n2", sys.executable, script)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("met 2") == 2


def test_srun_without_a_secret_tells_what_to_do(slurm: Slurm, script: str) -> None:
    ran = slurm.run("srun", "-N2", "-n2", sys.executable, script)
    assert ran.returncode != 0
    assert ran.stderr.count("export RUEDA_SECRET=$(openssl rand -hex 32)") == 2
    assert "srun --mpi=pmix" in ran.stderr


def test_srun_with_pmi2_needs_neither_mpi_nor_a_secret(slurm: Slurm, script: str) -> None:
    ran = slurm.run("srun", "--mpi=pmi2", "-N2", "-n4", sys.executable, script)
    assert ran.returncode == 0, ran.stderr + slurm.logs()
    assert ran.stdout.count("met 4 ['h0', 'h1']") == 4


def test_two_worlds_one_after_the_other_over_pmi(slurm: Slurm, tmp_path: Path) -> None:
    """A process may talk to its PMI server only once, and keys are written once."""
    path = tmp_path / "twice.py"
    path.write_text(MEET + "rueda.shutdown()\nrueda.init()\nprint('again', rueda.size())\n")
    ran = slurm.run("srun", "--mpi=pmi2", "-N2", "-n3", sys.executable, str(path))
    assert ran.returncode == 0, ran.stderr + slurm.logs()
    assert ran.stdout.count("again 3") == 3


def run_to_its_end(slurm: Slurm, job: str, output: Path) -> None:
    """Waits for a batch job that is requeued once. Fails at once if it failed, with its state."""
    deadline = time.monotonic() + 240
    while "JobState=COMPLETED" not in (state := slurm.run("scontrol", "show", "job", job).stdout):
        over = any(f"JobState={end}" in state for end in ("FAILED", "CANCELLED", "NODE_FAIL"))
        if over or time.monotonic() > deadline:
            told = output.read_text() if output.exists() else "it has written nothing"
            pytest.fail(f"{state}\n{told}\n{slurm.logs()}")
        if "Reason=BeginTime" in state:
            # Slurm holds a requeued job for two minutes: the credential of the new launch must be
            # newer, in whole seconds, than the message that ended the old one.
            time.sleep(2)
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        elif "held" in state:  # Slurm launched it too early nevertheless
            slurm.run("scontrol", "release", job)
        time.sleep(0.5)


def test_two_steps_at_once_and_a_requeued_job(slurm: Slurm, script: str, tmp_path: Path) -> None:
    """All with one secret; the job requeues itself once the steps of its first attempt have met."""
    batch = tmp_path / "batch.sh"
    batch.write_text(
        f"""#!/bin/bash
for step in 1 2; do srun --overlap -N2 -n4 {sys.executable} {script} & done
wait %1 && wait %2 || exit 1
if [[ -z $SLURM_RESTART_COUNT ]]; then scontrol requeue $SLURM_JOB_ID; sleep 60; fi
echo done
"""
    )
    output = tmp_path / "out"
    line = ["sbatch", "--parsable", "--requeue", "-N2", "-n4", "--open-mode=append"]
    submitted = slurm.run(*line, "-o", str(output), str(batch), **secret())
    assert submitted.returncode == 0, submitted.stderr
    run_to_its_end(slurm, submitted.stdout.strip(), output)
    text = output.read_text()
    for own in (("0", None), ("1", None), ("0", "1"), ("1", "1")):
        assert text.count(f"met 4 ['h0', 'h1'] {own}") == 4, text


def test_a_launcher_for_each_node(slurm: Slurm, script: str) -> None:
    rueda = [*LAUNCHER, "run", "--rendezvous", "tcp:h0:29400", "-np", "2", sys.executable, script]
    ran = slurm.run("srun", "-N2", "--ntasks-per-node=1", *rueda, **secret())
    assert ran.returncode == 0, ran.stderr + slurm.logs()
    assert ran.stdout.count("met 4 ['h0', 'h1']") == 4
