"""Variables without effect, or with an unexpected one, are pointed out once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from rueda_command import launcher_environment

from .conftest import Rueda

pytest.importorskip("rueda._native")

SENTENCE = (
    "the variable RUEDA_FUSION_TRESHOLD is unknown and has no effect; did you mean "
    "RUEDA_FUSION_THRESHOLD?"
)
INIT = [sys.executable, "-c", "import rueda; rueda.init(); rueda.shutdown()"]


def test_the_launcher_names_a_misspelled_variable_once(rueda: Rueda, launch: list[str]) -> None:
    ran = rueda(*launch, "-np", "2", *INIT, RUEDA_FUSION_TRESHOLD="1M")
    assert ran.code == 0, ran.err
    assert ran.err.count("TRESHOLD") == 1
    assert f"rueda: {SENTENCE}" in ran.err.splitlines()


def test_a_variable_that_is_set_for_the_ranks_is_looked_at_too(
    rueda: Rueda, launch: list[str]
) -> None:
    ran = rueda(*launch, "-np", "1", "-x", "RUEDA_TIMELNE=a", "true")
    assert ran.code == 0, ran.err
    assert "did you mean RUEDA_TIMELINE?" in ran.err


def run(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command,
        env={**launcher_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_under_mpirun_rank_0_names_it() -> None:
    mpirun = ["mpirun", "--oversubscribe", "-np", "2"]
    if os.geteuid() == 0:
        mpirun.append("--allow-run-as-root")
    err = run([*mpirun, *INIT], RUEDA_FUSION_TRESHOLD="1M")
    assert len(re.findall(re.escape(SENTENCE), err)) == 1


def test_without_a_launcher_the_process_names_it() -> None:
    twice = [
        sys.executable,
        "-c",
        "import rueda\nfor i in range(2): rueda.init(), rueda.shutdown()",
    ]
    err = run(twice, RUEDA_FUSION_TRESHOLD="1M")
    assert err.count(SENTENCE) == 1


def test_known_variables_are_not_mentioned(rueda: Rueda, launch: list[str]) -> None:
    ran = rueda(*launch, "-np", "2", *INIT, RUEDA_RING_CHUNK="1M", RUEDA_INSTRUCTION_SET="baseline")
    assert ran.code == 0, ran.err
    assert "RUEDA_" not in ran.err


@pytest.mark.parametrize(
    "sign", ["SLURM_NTASKS=4", "WORLD_SIZE=2", "JOB_COMPLETION_INDEX=1", "PET_NNODES=2"]
)
def test_a_world_of_one_where_several_were_started_is_pointed_out(sign: str) -> None:
    name, _, value = sign.partition("=")
    err = run(INIT, **{name: value})
    assert f"as a world of one rank, although {sign} indicates " in err
    assert "RUEDA_BOOTSTRAP=none" in err
    assert "world of one" not in run(INIT, **{name: value, "RUEDA_BOOTSTRAP": "none"})


def test_ranks_of_a_launcher_are_told_nothing_of_the_kind(rueda: Rueda, launch: list[str]) -> None:
    ran = rueda(*launch, "-np", "2", *INIT, WORLD_SIZE="4", JOB_COMPLETION_INDEX="0")
    assert ran.code == 0, ran.err
    assert "world of one" not in ran.err
