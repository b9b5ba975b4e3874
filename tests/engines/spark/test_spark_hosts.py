"""rueda.spark on a standalone Spark of two hosts, in network namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from engines.environments import Engine
from engines.hosts import two_hosts
from one_run import OneRun, each_check_of

SCRIPT = Path(__file__).resolve().parent / "check_spark_hosts.py"
PORT = 7077


@pytest.fixture(scope="module")
def ran(engine: Engine, digits: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    folder = tmp_path_factory.mktemp("hosts")
    variables = {
        "PYSPARK_PYTHON": str(engine.python),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(folder),
    }
    (packages,) = engine.python.parents[1].glob("lib/python*/site-packages")
    spark_class = packages / "pyspark" / "bin" / "spark-class"
    with two_hosts(engine, folder, **variables, **digits) as hosts:
        master = f"spark://{hosts.address('h0')}:{PORT}"
        for host, role, *more in (
            ("h0", "master.Master", "--port", str(PORT)),
            ("h1", "worker.Worker", "--cores", "2", "--memory", "1g", master),
            ("h0", "worker.Worker", "--cores", "2", "--memory", "1g", master),
        ):
            line = [str(spark_class), f"org.apache.spark.deploy.{role}", "--webui-port", "0"]
            hosts.start(host, *line, "--host", hosts.address(host), *more)
        return hosts.run(SCRIPT, master, hosts.address("h0"), limit=540)


@pytest.mark.timeout(600)  # six JVMs, which start slowly on busy cores
@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)
