"""rueda.dask on two hosts, in network namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from engines.environments import Engine
from engines.hosts import two_hosts
from one_run import OneRun, each_check_of

SCRIPT = Path(__file__).resolve().parent / "check_dask_hosts.py"
PORT = 8786


@pytest.fixture(scope="module")
def ran(engine: Engine, digits: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    with two_hosts(engine, tmp_path_factory.mktemp("hosts"), **digits) as hosts:
        scheduler = f"tcp://{hosts.address('h0')}:{PORT}"
        told = ["--host", hosts.address("h0"), "--port", str(PORT), "--no-dashboard"]
        hosts.start("h0", *hosts.module("distributed.cli.dask_scheduler"), *told)
        for host in ("h1", "h0"):
            each = ["--nworkers", "2", "--nthreads", "1", "--host", hosts.address(host)]
            worker = hosts.module("distributed.cli.dask_worker")
            hosts.start(host, *worker, scheduler, *each, "--no-dashboard", "--memory-limit", "0")
        return hosts.run(SCRIPT, scheduler)


@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)
