"""Explores the model of how survivors agree (tests/model/membership.pml) with spin."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[1] / "model" / "membership.pml"


@pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc compiles what spin writes")
def test_no_two_worlds_and_every_survivor_decides(tmp_path: Path) -> None:
    """Explores every interleaving in which one of four members ends."""

    def run(*command: str) -> str:
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120
        ).stdout

    run("spin", "-a", "-DDEATHS=1", "-DGIVE_UPS=0", str(MODEL))
    # Optimizing the code from spin takes longer than it saves.
    run("gcc", "-O0", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-o", "pan", "pan.c")
    report = run("./pan", "-n", "-m10000")
    assert "errors: 0" in report, report
    stored = re.search(r"(\d+) states, stored", report)
    assert stored, report
    assert int(stored[1]) > 100_000
    assert "max search depth too small" not in report
