"""rueda.spark in Spark's own environment: a local cluster, whose executors are processes of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from engines.environments import Engine
from launching import environment
from worlds import checks_in

SCRIPT = Path(__file__).resolve().parent / "check_spark.py"


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or newer, and there is no java on the path")


def run(engine: Engine, script: Path, arguments: Sequence[str | Path], folder: Path) -> str:
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
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.timeout(900)  # one session for all: Spark starts slowly where cores are busy
def test_checks(engine: Engine, tmp_path: Path) -> None:
    output = run(engine, SCRIPT, [tmp_path], tmp_path)
    assert re.findall(r"^ok (\w+)", output, re.MULTILINE) == checks_in(SCRIPT)
