"""Runs worlds of several hosts over MPI in a lab."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from forked import line_to_launch
from launching import Ended, command, environment, mpirun_line, run_to_end
from net.lab import Lab
from net.lab.fixture import or_skip
from one_run import OneRun


def options_of_mpirun(lab: Lab) -> list[str]:
    """Options that let mpirun reach the other hosts and restrict it to the first link."""
    network = lab.ipv4(lab.names[0]).rpartition(".")[0] + ".0/24"
    options = ["--prtemca", "plm", "ssh"]
    options += ["--prtemca", "plm_ssh_agent", str(lab.agent)]
    options += ["--prtemca", "prte_if_include", network]
    options += ["--mca", "btl_tcp_if_include", network, "--mca", "pml", "ob1"]
    return [*options, "--mca", "btl", "self,tcp,sm"]


def run_on_hosts(
    lab: Lab,
    program: str | Path,
    ranks_each: int,
    arguments: Sequence[str] = (),
    extra: dict[str, str] | None = None,
    limit: float = 240,
) -> Ended:
    """Runs ``ranks_each`` ranks on every host under mpirun, started on the first host."""
    everywhere = ",".join(f"{name}:{ranks_each}" for name in lab.names)
    options = ["--host", everywhere, *options_of_mpirun(lab)]
    for name in ["PATH", "PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS", *(extra or {})]:
        if name in os.environ or name in (extra or {}) or name == "OMP_NUM_THREADS":
            options += ["-x", name]
    rank = line_to_launch(command(program, arguments), environment(extra))
    line = mpirun_line(ranks_each * len(lab.names), rank, options)
    return run_to_end(lab.inside(lab.names[0], *line), extra, limit, "mpirun")


def all_checks_on_hosts(script: Path, hosts: int, ranks_each: int) -> OneRun:
    """Runs a script's checks once, in a lab of its own; skips if labs are unavailable."""
    with or_skip(), Lab(hosts) as lab:
        ended = run_on_hosts(lab, script, ranks_each)
    return OneRun(ended.returncode == 0, [ended.output])


def check_on_hosts(
    lab: Lab, program: str | Path, ranks_each: int, arguments: Sequence[str] = ()
) -> Ended:
    """Like :func:`run_on_hosts`; all ranks must succeed."""
    ended = run_on_hosts(lab, program, ranks_each, arguments)
    assert ended.returncode == 0, ended.output
    return ended
