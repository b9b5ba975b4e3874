"""What a training on Spark waits for, and what goes through its driver: docs/spark.md.

    make engines ENGINES=spark
    .engines/spark/bin/python benchmarks/spark/measure.py

400,000 rows of 64 doubles and a label in two Parquet files, which two ranks read in a local cluster of two executors,
each a process of its own. A rank's bytes are those of Arrow that Spark has fed and those of gradients it has reduced;
the driver's are those that its two processes read and write, from before fit() to after it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import rueda
import rueda.spark
import rueda.torch
import torch
from pyspark.sql import SparkSession
from torch.nn.functional import cross_entropy

FEATURES, EPOCHS, BATCH = 64, 3, 256


def write_rows(folder: Path, rows: int) -> None:
    """Two files, so two partitions."""
    for part in range(2):
        rng = np.random.default_rng(part)
        values = pa.array(rng.random(rows // 2 * FEATURES))
        columns = {
            "features": pa.FixedSizeListArray.from_arrays(values, FEATURES).cast(
                pa.list_(pa.float64())
            ),
            "label": pa.array(rng.integers(0, 10, rows // 2)),
        }
        pyarrow.parquet.write_table(pa.table(columns), folder / f"part-{part}.parquet")


def train(batches: rueda.spark.Batches) -> Any:
    """What each rank has read, reduced and waited for."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    model = torch.nn.Sequential(*layers)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer: Any = rueda.torch.DistributedOptimizer(plain, model.named_parameters())
    before = rueda.metrics()["allreduce_tensor_bytes"]
    began = time.perf_counter()
    for _ in range(EPOCHS):
        for batch in batches:
            arrays = rueda.spark.arrays(batch)
            optimizer.zero_grad()
            inputs = torch.from_numpy(arrays["features"]).float()
            cross_entropy(model(inputs), torch.from_numpy(arrays["label"])).backward()
            optimizer.step()
    took = time.perf_counter() - began
    reduced = rueda.metrics()["allreduce_tensor_bytes"] - before
    return rueda.allgather_object((batches.statistics, reduced, took))


def moved(processes: list[int]) -> int:
    """Bytes that processes have read and written, as the kernel counts calls of read() and write().

    Files, and all sockets of Java without epoll. What Python sends and receives otherwise is the same again: the
    driver's has connections to its Java alone.
    """
    lines = [line for p in processes for line in Path(f"/proc/{p}/io").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    rows = parser.parse_args().rows
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").appName("measure")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.io.mode.default": "NIO",  # see moved()
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    java: Any = spark.sparkContext._jvm
    driver = [os.getpid(), int(java.java.lang.ProcessHandle.current().pid())]
    with tempfile.TemporaryDirectory() as place:
        write_rows(Path(place), rows)
        frame = spark.read.parquet(place)
        rueda.spark.fit(frame.limit(2000).repartition(2), train, 2, batch_size=BATCH)  # warms up
        before = moved(driver)
        told = rueda.spark.fit(frame, train, 2, batch_size=BATCH)
        by_driver = moved(driver) - before
    spark.stop()
    of_ranks = [read.bytes_read + reduced for read, reduced, _ in told]
    print("| rank | fed | spilled | reduced | first wait | other waits | of | share |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for rank, (read, reduced, took) in enumerate(told):
        share = (read.wait_seconds + read.first_wait_seconds) / took
        print(
            f"| {rank} | {read.bytes_read:,} | {read.bytes_spilled:,} | {reduced:,} | {read.first_wait_seconds:.2f} s "
            f"| {read.wait_seconds:.2f} s | {took:.1f} s | {share:.2%} |"
        )
    mean = sum(of_ranks) / len(of_ranks)
    print(f"driver: {by_driver:,} bytes, {by_driver / mean:.2%} of the ranks' mean of {mean:,.0f}")


if __name__ == "__main__":
    main()
