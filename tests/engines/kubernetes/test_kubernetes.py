"""Checks the manifests of examples/kubernetes against the schemas of their consumers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from engines.environments import ROOT, Engine

SCRIPT = Path(__file__).with_name("check_manifests.py")
CHECKS = ["job", "jobset", "trainjob", "mpijob", "what_is_wrong_is_found", "commands"]


def test_manifests(engine: Engine, tmp_path: Path) -> None:
    ran = subprocess.run(
        [engine.python, SCRIPT, ROOT / "examples" / "kubernetes"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.findall(r"^ok check_(\w+)", ran.stdout, re.MULTILINE) == CHECKS
