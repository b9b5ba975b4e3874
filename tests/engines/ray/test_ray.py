"""rueda.ray on a cluster of its own, in .engines/ray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from engines.environments import ROOT, Engine
from launching import Ended
from one_run import OneRun, each_check_of

SCRIPT = Path(__file__).resolve().parent / "check_ray.py"
VARIABLES = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Rejects references pickled outside of Ray's own calls, whose objects Ray would keep for ever.
    "RAY_allow_out_of_band_object_ref_serialization": "0",
}


def run_to_end(engine: Engine, script: Path, folder: Path) -> Ended:
    return engine.run_alone(script, folder, VARIABLES, 580)


@pytest.fixture(scope="module")
def ran(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    folder = tmp_path_factory.mktemp("checks")
    ended = run_to_end(engine, SCRIPT, folder)
    return OneRun(ended.returncode == 0, [ended.output])


@pytest.mark.timeout(600)  # one cluster for all: Ray starts workers slowly on busy cores
@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)


def test_the_example_of_the_page(engine: Engine, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "ray.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    ended = run_to_end(engine, script, tmp_path)
    output = ended.output
    assert ended.returncode == 0, output
    distances = re.findall(r"^rank (\d): ([\d.e-]+)$", output, re.MULTILINE)
    assert [rank for rank, _ in distances] == ["0", "1"], output
    assert distances[0][1] == distances[1][1]
    assert float(distances[0][1]) < 1e-3
