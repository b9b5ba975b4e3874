"""rueda.init() under MPICH's mpiexec, without any MPI: the ranks meet through PMI."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from engines.environments import STALLS, Engine
from launching import environment

SCRIPT = Path(__file__).with_name("check_hydra.py")


def run(engine: Engine, size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Ranks under Hydra, to their end."""
    line = [
        engine.python.with_name("mpiexec.hydra"),
        "-n",
        str(size),
        engine.python,
        SCRIPT,
        *arguments,
    ]
    return subprocess.run(
        line, env=environment(STALLS), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_meet_through_pmi_again_and_again(engine: Engine, size: int) -> None:
    ran = run(engine, size)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count(f"met {size}") == size
    assert ran.stderr == ""


def test_a_rank_that_fails_ends_the_job(engine: Engine) -> None:
    ran = run(engine, 2, "fails")
    assert ran.returncode != 0
    assert "ValueError: a bad row" in ran.stderr
    assert "met" not in ran.stdout
