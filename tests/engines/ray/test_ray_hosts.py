"""rueda.ray on two hosts, in network namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from engines.environments import Engine
from engines.hosts import two_hosts
from one_run import OneRun, each_check_of
from test_ray import VARIABLES

SCRIPT = Path(__file__).resolve().parent / "check_ray_hosts.py"
PORT = 6379
# Otherwise a node waits for the processes that choose these ports, and ends if they start slowly.
PORTS = {
    "--metrics-export-port": 20001,
    "--dashboard-agent-listen-port": 20002,
    "--dashboard-agent-grpc-port": 20003,
    "--runtime-env-agent-port": 20004,
    "--node-manager-port": 20005,
}


@pytest.fixture(scope="module")
def ran(engine: Engine, digits: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    patient = {**VARIABLES, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300"}
    with two_hosts(engine, tmp_path_factory.mktemp("hosts"), **patient, **digits) as hosts:
        head = f"{hosts.address('h0')}:{PORT}"
        line = [*hosts.module("ray.scripts.scripts"), "start", "--block"]
        each = ["--num-cpus", "2", "--object-store-memory", str(100 << 20)]
        each += [f"{name}={port}" for name, port in PORTS.items()]
        for host in ("h0", "h1"):
            # A separate folder, as on hosts that share no files: Ray keeps the node's address
            # there.
            own = ["--node-ip-address", hosts.address(host), "--temp-dir", str(hosts.place / host)]
            if host == "h0":
                role = ["--head", "--port", str(PORT), "--include-dashboard", "false"]
            else:
                role = ["--address", head]
            hosts.start(host, *line, *role, *own, *each)
            # One after the other: a node gives up after 30 s, and so does a node that joins a
            # starting head.
            for name in ("--node-manager-port", "--runtime-env-agent-port"):
                hosts.wait_for(host, PORTS[name])
        return hosts.run(SCRIPT, head, hosts.address("h0"), limit=540)


@pytest.mark.timeout(600)  # Ray starts workers slowly on busy cores
@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)
