"""What `rueda check -H` reports about the links between hosts."""

from __future__ import annotations

import json
import subprocess

import pytest
from hosts import options_of_mpirun
from launching import find_mpirun
from rueda_command import LAUNCHER, launcher_environment

from .lab import Lab

pytest.importorskip("rueda._native")


def check(lab: Lab, *arguments: str, agent: bool = True) -> str:
    """Returns what `rueda check` prints on h0."""
    through = ["--ssh", str(lab.agent)] if agent else []
    line = lab.inside("h0", *LAUNCHER, "check", *through, *arguments)
    done = subprocess.run(
        line, env=launcher_environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_check_tells_what_was_measured_and_what_follows(lab: Lab) -> None:
    world = json.loads(check(lab, "-H", "h0:2,h1:1", "--json"))
    assert (world["schema"], world["ranks"], world["hosts"]) == (1, 3, {"h0": 2, "h1": 1})
    (link,) = world["links"]
    assert link["transport"] == "tcp"
    assert link["latency_us"] > 0
    assert not link["obstacle"]
    algorithms = [row["algorithm"] for row in world["allreduce"]]
    assert algorithms[0] == "doubling"
    assert algorithms[-1] == "hierarchical"
    predicted = [row["predicted_us"] for row in world["allreduce"]]
    assert all(time > 0 for time in predicted)
    assert predicted[-1] > predicted[0]


def test_check_as_text(lab: Lab) -> None:
    lines = check(lab, "-H", "h1:1,h2:1").splitlines()
    assert lines[0] == "ranks: 2 on 2 hosts: h1 (1), h2 (1)"
    assert lines[1].startswith("link tcp: used, ")
    assert " µs" in lines[1]
    assert lines[2].startswith("allreduce from 8 bytes: doubling, ")
    assert lines[-1].startswith("link mpi: not tried; 'rueda check -H HOSTS --mpi'")


@pytest.mark.skipif(find_mpirun() is None, reason="there is no MPI")
def test_check_tells_of_mpi_beside_tcp(lab: Lab) -> None:
    mpirun = " ".join(options_of_mpirun(lab))
    text = check(lab, "-H", "h0:1,h1:1", "--mpi", "--mpi-args", mpirun, agent=False)
    lines = [line for line in text.splitlines() if line.startswith("link ")]
    assert sorted(line.partition(":")[0] for line in lines) == ["link mpi", "link tcp"], text
    assert sum(": used, " in line for line in lines) == 1, text
    assert all(" µs" in line for line in lines), text


def test_check_says_which_host_cannot_be_reached(lab: Lab) -> None:
    line = lab.inside("h0", *LAUNCHER, "check", "--ssh", str(lab.agent), "-H", "h0:1,nowhere:1")
    done = subprocess.run(
        line, env=launcher_environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "nowhere" in done.stderr, done.stderr
