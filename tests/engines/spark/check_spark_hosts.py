"""rueda.spark on two hosts whose executors run two tasks each: python check_spark_hosts.py MASTER HOST, as driver."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import rueda
import rueda.spark
from digits import learned, learned_alone, require_as_good
from pyspark.sql import SparkSession
from two_hosts import (
    dies_on_the_second_host,
    fails_on_the_second_host,
    looks_around,
    require_two_hosts,
)


def check_ranks_of_a_host_are_neighbours(spark: SparkSession) -> None:
    require_two_hosts(rueda.spark.run(looks_around, num_proc=4))


def check_digits_are_trained_as_by_one_process(spark: SparkSession) -> None:
    together = rueda.spark.run(learned, num_proc=4)
    assert len(set(together)) == 1
    require_as_good(together[0], learned_alone())


def check_an_error_of_the_other_host_is_told(spark: SparkSession) -> None:
    told: Any = None
    try:
        rueda.spark.run(fails_on_the_second_host, num_proc=4)
    except ValueError as error:
        told = error
    assert f"{told}" == "a bad row on h1"
    assert "raised on rank 3" in told.__notes__


def check_a_worker_of_the_other_host_that_is_killed_is_named(spark: SparkSession) -> None:
    """Spark names it after two attempts."""
    told: Any = None
    try:
        rueda.spark.run(dies_on_the_second_host, num_proc=4)
    except Exception as error:
        told = error
    assert "Python worker exited unexpectedly" in f"{told}"
    assert told.__notes__ == ["lost first: rank 3 on 10.213.1.2"]


def check_all_begin_anew_where_one_of_the_other_host_is_killed(spark: SparkSession) -> None:
    killed = Path.cwd() / "killed"

    def dies_once() -> float:
        rueda.barrier()
        if not killed.exists():
            rueda.barrier()
            if rueda.rank() == 3:
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return float(rueda.allreduce(np.ones(1), "gradient", rueda.Sum)[0])

    assert rueda.spark.run(dies_once, num_proc=4) == [4.0] * 4
    assert killed.exists()


if __name__ == "__main__":
    master, host = sys.argv[1:]
    settings = {
        "spark.driver.host": host,
        "spark.executor.memory": "512m",
        "spark.stage.maxConsecutiveAttempts": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(master).appName("rueda")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for name, act in list(globals().items()):
        if name.startswith("check_"):
            act(spark)
            print("ok", name, flush=True)
    spark.stop()
