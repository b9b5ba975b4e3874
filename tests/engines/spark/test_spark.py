"""rueda.spark in Spark's own environment: a local cluster, whose executors are processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from engines.environments import Engine
from launching import Ended, environment
from one_run import OneRun, each_check_of

SCRIPT = Path(__file__).resolve().parent / "check_spark.py"


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or newer, and there is no java on the path")


def run_to_end(
    engine: Engine, script: Path, arguments: Sequence[str | Path], folder: Path
) -> Ended:
    """One process, the driver, which starts the cluster itself; that ends with it."""
    done = subprocess.run(
        [engine.python, script, *arguments],
        env=environment(
            {
                "KERAS_BACKEND": "torch",
                "PYSPARK_PYTHON": str(engine.python),
                "SPARK_LOCAL_DIRS": str(folder),
            }
        ),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=840,
        check=False,
    )
    return Ended(done.returncode, done.stdout)


@pytest.fixture(scope="module")
def ran(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> OneRun:
    folder = tmp_path_factory.mktemp("checks")
    ended = run_to_end(engine, SCRIPT, [folder], folder)
    return OneRun(ended.returncode == 0, [ended.output])


@pytest.mark.timeout(900)  # one session for all: Spark starts slowly where cores are busy
@each_check_of(SCRIPT)
def test_checks(ran: OneRun, check: str) -> None:
    ran.require(check)
