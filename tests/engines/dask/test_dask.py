"""rueda.dask in Dask's own environment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from engines.environments import ROOT, Engine
from launching import environment
from worlds import checks_in

SCRIPT = Path(__file__).resolve().parent / "check_dask.py"


def run(engine: Engine, script: Path, folder: Path) -> str:
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
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_checks(engine: Engine, tmp_path: Path) -> None:
    output = run(engine, SCRIPT, tmp_path)
    assert re.findall(r"^ok (\w+)", output, re.MULTILINE) == checks_in(SCRIPT)


def test_the_example_of_the_page(engine: Engine, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "dask.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    distances = re.findall(r"^rank (\d): ([\d.e-]+)$", run(engine, script, tmp_path), re.MULTILINE)
    assert [rank for rank, _ in distances] == ["0", "1"]
    assert distances[0][1] == distances[1][1]
    assert float(distances[0][1]) < 1e-3
