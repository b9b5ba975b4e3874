"""rueda.dask in Dask's own environment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from engines.environments import ROOT, Engine
from launching import Ended, environment
from one_run import OneRun, each_check_of

SCRIPT = Path(__file__).resolve().parent / "check_dask.py"


def run_to_end(engine: Engine, script: Path, folder: Path) -> Ended:
    """One process, which starts the cluster itself; Dask ends the workers with it."""
    done = subprocess.run(
        [engine.python, script, folder],
        env=environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    return Ended(done.returncode, done.stdout)


def run(engine: Engine, script: Path, folder: Path) -> str:
    """The same; it must succeed."""
    ended = run_to_end(engine, script, folder)
    assert ended.returncode == 0, ended.output
    return ended.output


@pytest.fixture(scope="module")
def ran(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    folder = tmp_path_factory.mktemp("checks")
    ended = run_to_end(engine, SCRIPT, folder)
    return OneRun(ended.returncode == 0, [ended.output])


@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)


def test_the_example_of_the_page(engine: Engine, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "dask.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    distances = re.findall(r"^rank (\d): ([\d.e-]+)$", run(engine, script, tmp_path), re.MULTILINE)
    assert [rank for rank, _ in distances] == ["0", "1"]
    assert distances[0][1] == distances[1][1]
    assert float(distances[0][1]) < 1e-3
