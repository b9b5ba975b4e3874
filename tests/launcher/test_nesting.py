"""Launchers within launchers: processes form the world of the innermost one that has started several."""

from __future__ import annotations

import os
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from rueda.launcher.environment import OUTER_STEP, without_identity

from .conftest import Rueda

pytest.importorskip("rueda._native")

HAS_MPIRUN = Path(sys.executable).with_name("mpirun").exists()
needs_mpirun = pytest.mark.skipif(not HAS_MPIRUN, reason="there is no mpirun")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
INNER = {
    "mpirun": [
        str(Path(sys.executable).with_name("mpirun")),
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        "--oversubscribe",
        "--bind-to",
        "none",
        "-np",
    ],
    "torchrun": TORCHRUN,
    "rueda run": [sys.executable, "-m", "rueda.launcher", "run", "--no-mpi", "--no-prefix", "-np"],
}
# Worlds of one launcher's processes are told apart from others by the process that has started their ranks.
MEET = """
import os, rueda
rueda.init(init_timeout=60)
agents = rueda.allgather_object(os.getppid())
print(f"rank {rueda.rank()} of {rueda.size()} of {len(set(agents))}\\n", end="", flush=True)
"""


def line_of(inner: str, size: int) -> list[str]:
    """The command line of a launcher that starts MEET on `size` processes."""
    if inner == "torchrun":
        pytest.importorskip("torch")
    if inner == "mpirun" and not HAS_MPIRUN:
        pytest.skip("there is no mpirun")
    return [*INNER[inner], str(size), *([] if inner == "torchrun" else [sys.executable]), "meet.py"]


def met(rueda: Rueda, folder: Path, outer: list[str], inner: list[str]) -> Counter[str]:
    """How often each rank met: "RANK of SIZE of AGENTS", the number of processes that started the world's ranks."""
    (folder / "meet.py").write_text(MEET)
    ran = rueda("run", *outer, *inner)
    assert ran.code == 0, ran.err
    return Counter(line.partition("rank ")[2] for line in ran.out.splitlines() if "rank " in line)


@pytest.mark.parametrize("outer", [1, 2])
@pytest.mark.parametrize("inner", INNER)
def test_each_launcher_within_a_rank_has_a_world_of_its_own(
    rueda: Rueda, tmp_path: Path, inner: str, outer: int
) -> None:
    found = met(rueda, tmp_path, ["--no-mpi", "-np", str(outer)], line_of(inner, 2))
    assert found == {"0 of 2 of 1": outer, "1 of 2 of 1": outer}


@pytest.mark.parametrize("inner", ["torchrun", "rueda run"])
def test_so_it_has_within_mpirun(rueda: Rueda, tmp_path: Path, inner: str) -> None:
    line = line_of(inner, 2)
    outer = line_of("mpirun", 1)[:-2]
    (tmp_path / "meet.py").write_text(MEET)
    found = met(rueda, tmp_path, ["--no-mpi", "-np", "1"], [*outer, *line])
    assert found == {"0 of 2 of 1": 1, "1 of 2 of 1": 1}


@pytest.mark.parametrize("inner", ["mpirun", "torchrun"])
def test_a_launcher_of_one_process_leaves_it_the_rank_that_it_is(
    rueda: Rueda, tmp_path: Path, inner: str
) -> None:
    found = met(rueda, tmp_path, ["--no-mpi", "-np", "2"], line_of(inner, 1))
    assert found == {"0 of 2 of 2": 1, "1 of 2 of 2": 1}


def test_variables_that_a_program_sets_itself_change_nothing(rueda: Rueda, tmp_path: Path) -> None:
    program = """
    import os, subprocess, sys
    told = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    told |= {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "1", "PMI_SIZE": "4"}
    os.environ.update(told)
    os.execv(sys.executable, [sys.executable, "meet.py"])
    """
    (tmp_path / "sets.py").write_text(textwrap.dedent(program))
    found = met(rueda, tmp_path, ["--no-mpi", "-np", "2"], [sys.executable, "sets.py"])
    assert found == {"0 of 2 of 1": 1, "1 of 2 of 1": 1}


# Starts tasks as srun does, without PMI.
SRUN = """
import os, subprocess, sys
step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": sys.argv[1], "SLURM_STEP_NUM_TASKS": "2"}
step |= {"SLURM_STEP_NODELIST": "n1", "RUEDA_SECRET": str(os.getpid())}
line = [sys.executable, *sys.argv[2:]]
tasks = [subprocess.Popen(line, env=os.environ | step | {"SLURM_PROCID": str(n)}) for n in range(2)]
sys.exit(any([task.wait() for task in tasks]))
"""
OUTER_TASK = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "4"}
OUTER_TASK |= {"SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "n1"}


@pytest.mark.parametrize("outer_step", [False, True])
def test_a_step_of_slurm_counts_if_it_began_within_the_rank(
    rueda: Rueda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outer_step: bool
) -> None:
    (tmp_path / "srun.py").write_text(SRUN)
    if outer_step:
        for name, value in OUTER_TASK.items():
            monkeypatch.setenv(name, value)
    own = met(rueda, tmp_path, ["--no-mpi", "-np", "2"], [sys.executable, "meet.py"])
    assert own == {"0 of 2 of 1": 1, "1 of 2 of 1": 1}
    line = [sys.executable, "srun.py", "4", "meet.py"]
    inner = met(rueda, tmp_path, ["--no-mpi", "-np", "1"], line)
    assert inner == {"0 of 2 of 1": 1, "1 of 2 of 1": 1}


def test_ranks_are_told_which_step_is_an_outer_one() -> None:
    outer = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", OUTER_STEP: "76.0"}
    assert without_identity(outer) == {**outer, OUTER_STEP: "77.3"}
    assert without_identity({OUTER_STEP: "76.0"}) == {}


@needs_mpirun
def test_the_outer_launcher_is_not_told_of_an_inner_world(rueda: Rueda, tmp_path: Path) -> None:
    # Of as many ranks as its own job has: it would take these for its own, which never come.
    program = """
    import os, subprocess, sys
    if os.environ["RUEDA_RANK"] == "0":
        sys.exit(subprocess.run(sys.argv[1:]).returncode)
    """
    (tmp_path / "first.py").write_text(textwrap.dedent(program))
    line = [sys.executable, "first.py", *line_of("mpirun", 2)]
    found = met(rueda, tmp_path, ["--no-mpi", "-np", "2"], line)
    assert found == {"0 of 2 of 1": 1, "1 of 2 of 1": 1}
