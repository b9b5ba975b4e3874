"""rueda.spark in Spark's own environment: a local cluster with executors in separate processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from engines.environments import Engine
from one_run import OneRun, each_check_of

SCRIPT = Path(__file__).resolve().parent / "check_spark.py"


@pytest.fixture(scope="module")
def ran(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    folder = tmp_path_factory.mktemp("checks")
    variables = {
        "KERAS_BACKEND": "torch",
        "PYSPARK_PYTHON": str(engine.python),
        "SPARK_LOCAL_DIRS": str(folder),
    }
    ended = engine.run_alone(SCRIPT, folder, variables, 840)
    return OneRun(ended.returncode == 0, [ended.output])


@pytest.mark.timeout(900)  # one session for all: Spark starts slowly on busy cores
@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)
