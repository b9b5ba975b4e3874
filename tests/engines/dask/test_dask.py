"""rueda.dask in Dask's own environment."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from engines.environments import ROOT, Engine
from one_run import OneRun, each_check_of

SCRIPT = Path(__file__).resolve().parent / "check_dask.py"


@pytest.fixture(scope="module")
def ran(engine: Engine, digits: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    folder = tmp_path_factory.mktemp("checks")
    ended = engine.run_alone(SCRIPT, folder, digits)
    return OneRun(ended.returncode == 0, [ended.output])


@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)


def test_the_example_of_the_page(engine: Engine, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "dask.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    ended = engine.run_alone(script, tmp_path)
    assert ended.returncode == 0, ended.output
    distances = re.findall(r"^rank (\d): ([\d.e-]+)$", ended.output, re.MULTILINE)
    assert [rank for rank, _ in distances] == ["0", "1"]
    assert distances[0][1] == distances[1][1]
    assert float(distances[0][1]) < 1e-3
