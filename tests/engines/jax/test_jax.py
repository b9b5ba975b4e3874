"""rueda.jax with real ranks, in .engines/jax."""

import re
import signal
import subprocess
from pathlib import Path

import pytest
from engines.environments import ROOT, STALLS, Engine
from launching import Job
from one_run import OneRun, each_check_of

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "check_jax.py"


@pytest.fixture(scope="module")
def ran(engine: Engine) -> OneRun:
    return engine.run_checks(SCRIPT, 2, [str(ROOT / "docs" / "jax.md")], STALLS)


@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)


def test_what_is_under_way_at_exit_ends_first(engine: Engine) -> None:
    for output in engine.run(HERE / "leave_early.py", 2, ["end"], STALLS):
        assert output.splitlines()[-1] == "the end", output


def test_another_job_loads_compiled_functions(engine: Engine, tmp_path: Path) -> None:
    for act in ("save", "load"):
        for output in engine.run(HERE / "save_and_load.py", 2, [act, str(tmp_path)], STALLS):
            assert output.splitlines()[-1] == "done", output


def test_a_rank_that_is_killed_is_told(engine: Engine) -> None:
    script = HERE / "leave_early.py"
    with Job(script, 2, ["die"], STALLS, engine.python) as job:
        ended = job.wait(120)
        assert [rank.returncode for rank in ended] == [0, -signal.SIGKILL], job.report()
        assert re.search(r"told: .*rank 1 \(.*is gone", ended[0].output), job.report()


def test_compiled_functions_follow_the_ranks_that_are_left(engine: Engine) -> None:
    script = HERE / "lose_a_rank.py"
    extra = {**STALLS, "RUEDA_RECOVERY": "on"}
    with Job(script, 3, [], extra, engine.python) as job:
        ended = job.wait(120)
        assert [rank.returncode for rank in ended] == [-signal.SIGKILL, 0, 0], job.report()
        assert all(rank.output.endswith("done\n") for rank in ended[1:]), job.report()


def test_the_abi_is_that_of_jaxlib(engine: Engine) -> None:
    code = "import jax; print(jax.ffi.include_dir())"
    headers = subprocess.run(
        [engine.python, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()
    line = ["c++", "-std=c++20", "-fsyntax-only", "-I", headers, "-I", ROOT / "csrc"]
    compiled = subprocess.run(
        [*line, HERE / "abi.cpp"], capture_output=True, text=True, timeout=120, check=False
    )
    assert compiled.returncode == 0, compiled.stderr
