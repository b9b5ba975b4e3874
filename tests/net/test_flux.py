"""Rueda under Flux with two brokers on two hosts: the ranks meet through its PMI, without MPI."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rueda_command import launcher_environment

from .lab import Lab

MEET = """
import os, rueda
rueda.init(init_timeout=60)
rueda.shutdown()
rueda.init(init_timeout=60)  # a process manager takes one conversation in a process's life
found = rueda.allgather_object(os.uname().nodename)
print("met", rueda.size(), sorted(set(found)), "\\n", end="")
"""
# Flux starts each broker with this: on the host whose number is the broker's rank.
WRAP = """#!/bin/bash
exec ip netns exec {lab}-h$PMI_RANK unshare --uts bash -c 'hostname "$0" && exec "$@"' h$PMI_RANK "$@"
"""
Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(shutil.which("flux") is None, reason="there is no flux on PATH")


@pytest.fixture
def run(lab: Lab, tmp_path: Path) -> Run:
    """Runs a program under `flux run`, in its own Flux instance."""
    wrap = tmp_path / "wrap"
    wrap.write_text(WRAP.format(lab=lab.lab))
    wrap.chmod(0o755)
    kept = {k: v for k, v in launcher_environment().items() if not k.startswith(("FLUX_", "PMI_"))}

    def started(*options: str) -> subprocess.CompletedProcess[str]:
        line = ["flux", "start", "-s", "2", f"--wrap={wrap}", "flux", "run", *options]
        return subprocess.run(
            [*line, sys.executable, "-c", MEET],
            env={**kept, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    return started


def test_flux_run_on_two_hosts(run: Run) -> None:
    ran = run("-N2", "-n4")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("met 4 ['h0', 'h1']") == 4


def test_flux_without_pmi_is_told(run: Run) -> None:
    ran = run("-N2", "-n2", "-o", "pmi=off")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("met 1") == 2
    assert "FLUX_JOB_SIZE=2 indicates a Flux job of several tasks" in ran.stderr
