"""rueda.spark on executors of this host, which are separate processes."""

from __future__ import annotations

import asyncio
import contextlib
import doctest
import importlib
import io
import os
import re
import resource
import runpy
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
import rueda
import rueda.horovod.spark
import rueda.spark
import rueda.torch
import torch
from pyspark import BarrierTaskContext
from pyspark.sql import DataFrame, SparkSession
from rueda.horovod import alias
from rueda.spark import tfcluster
from rueda.spark.checkpoints import checkpoint_at
from rueda.spark.elephas import SparkModel, to_simple_rdd
from rueda.spark.rdds import as_frame
from rueda.spark.refusals import chosen
from rueda.spark.running import run_formed
from rueda.spark.spilling import Spill, local_folder
from rueda.spark.summaries import summaries_at
from rueda.spark.tfnode import DataFeed
from rueda.variables import set_variables
from signatures import require_signatures_of_horovod
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "parallel" / "python")]
from parallel import raises  # noqa: E402

DIGITS = "features array<double>, label bigint"
HELD_OUT = 360
EPOCHS = 10


def session(master: str, **settings: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("rueda")
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    for name, value in {**quiet, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextlib.contextmanager
def cluster(**settings: str) -> Iterator[SparkSession]:
    """Two executors in separate processes, whose logs are removed at the end."""
    spark = session("local-cluster[2,1,1024]", **settings)
    spark.sparkContext.setLogLevel("ERROR")
    work = Path(pyspark.__file__).parent / "work" / str(spark.sparkContext.applicationId)
    try:
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)


def jobs(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup())


def total(add: int, factor: int = 1) -> tuple[int, int, float]:
    value = np.array([float((rueda.rank() + add) * factor)])
    return rueda.rank(), os.getpid(), float(rueda.allreduce(value, "total", rueda.Sum)[0])


def check_results_are_by_rank(spark: SparkSession, folder: Path) -> None:
    results = rueda.spark.run(total, [5], {"factor": 2}, 2)
    assert [rank for rank, _, _ in results] == [0, 1]
    assert len({process for _, process, _ in results}) == 2
    assert {value for _, _, value in results} == {22.0}
    assert len(rueda.spark.run(total, (0,))) == spark.sparkContext.defaultParallelism == 2
    assert len(rueda.spark.run(total, (0,), num_proc=1)) == 1
    # As other libraries pass them: NumPy numbers, and None for no arguments.
    assert len(rueda.spark.run(rueda.rank, None, None, np.int64(2), np.float32(60))) == 2

    def given() -> str | None:
        return os.environ.get("GIVEN")

    assert rueda.spark.run(given, env={"GIVEN": "yes"}) == ["yes", "yes"]
    assert rueda.spark.run(given) == [None, None]


def check_large_results_come_whole(spark: SparkSession, folder: Path) -> None:
    """Results larger than a row are sent in pieces."""
    (found,) = rueda.spark.run(lambda: np.arange(17 << 20, dtype=np.int32), num_proc=1)
    assert (found == np.arange(17 << 20)).all()


def averages(*rows: int) -> tuple[int, list[float], str | None]:
    """Like a Horovod user's function: an average also counts ranks that have joined."""
    import horovod.torch as hvd

    hvd.init()
    found = [
        float(hvd.allreduce(torch.ones(1), name=f"row {row}")[0]) for row in range(rows[hvd.rank()])
    ]
    hvd.join()
    return hvd.rank(), found, os.environ.get("GIVEN")


def check_horovods_run(spark: SparkSession, folder: Path) -> None:
    require_signatures_of_horovod(rueda.horovod.spark, "spark")
    alias.install()  # here, and thereby on the executors
    import horovod.spark

    told = horovod.spark.run(averages, (2, 1), num_proc=2, env={"GIVEN": "yes"}, use_gloo=True)
    assert told == [(0, [1.0, 0.5], "yes"), (1, [1.0], "yes")]
    # A value that the core does not understand is hidden from it meanwhile, and does not leak to
    # the next task.
    horovod.spark.run(averages, (1, 1), num_proc=2, env={"HOROVOD_LOG_LEVEL": "fatal"})
    left = rueda.spark.run(lambda: os.environ.get("HOROVOD_LOG_LEVEL"), num_proc=2)
    assert left == [None, None]
    for name in ("use_mpi", "extra_mpi_args", "stdout", "stderr", "executable"):
        with raises(rueda.UnsupportedError, f"{name}= has no meaning here"):
            horovod.spark.run(averages, (1,), num_proc=1, **{name: "x"})
    with raises(rueda.UnsupportedError, "run_elastic() is not supported", "fit(checkpoint=)"):
        horovod.spark.run_elastic(averages, num_proc=2)
    variable, told = "HOROVOD_SPARK_START_TIMEOUT", "num_proc=5 ranks need 5 slots"
    with (
        set_variables({variable: "soon"}),
        raises(rueda.InvalidArgumentError, f"{variable}='soon'"),
    ):
        horovod.spark.run(averages, (1,), num_proc=1)
    with set_variables({variable: "0.5"}), raises(rueda.TimeoutError, told, "after 0.5 s"):
        horovod.spark.run(averages, (1,), num_proc=5)
    with raises(ModuleNotFoundError, "horovod.spark.keras", "rueda.spark.fit()"):
        importlib.import_module("horovod.spark.keras")


def check_who_fails_before_ranks_have_met_is_told(spark: SparkSession, folder: Path) -> None:
    """The error is not that of a waiting rank, even of a lower one."""

    def badly(rank: int) -> Callable[[], Any]:
        @contextlib.contextmanager
        def forms() -> Iterator[dict[str, str]]:
            mine = BarrierTaskContext.get().partitionId() == rank
            yield {"init_timeout": "3", **({"fusion_threshold": "much"} if mine else {})}

        return forms

    for rank in (1, 0):
        with raises(rueda.InitializationError, "fusion_threshold", "much"):
            run_formed(badly(rank), total, (0,), None, 2, None, None, None)


def raised_by(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


class NoSuchSample(Exception):
    """An error of the main script, which workers do not have."""


class Diverged(Exception):
    """Pickle calls its constructor with the text alone, and does not carry its lock."""

    def __init__(self, loss: float, step: int) -> None:
        super().__init__(f"diverged to {loss} in step {step}")
        self.step = step
        self.lock = threading.Lock()


def check_an_error_is_told_and_not_tried_again(spark: SparkSession, folder: Path) -> None:
    def fails() -> float:
        (folder / f"began-{rueda.rank()}").touch(exist_ok=False)
        if rueda.rank() == 1:
            raise ValueError("a bad row in the data")
        return float(rueda.allreduce(np.ones(1), "gradient")[0])

    told = raised_by(lambda: rueda.spark.run(fails, num_proc=2))
    assert type(told) is ValueError
    assert f"{told}" == "a bad row in the data"
    assert "raised on rank 1" in told.__notes__
    assert "on rank 1:" in f"{told.__cause__}"
    assert "in fails" in f"{told.__cause__}"
    # A second attempt would have failed at the files of the first, with another error.
    assert len(list(folder.iterdir())) == 2

    def misses() -> None:
        raise NoSuchSample("sample 7")

    told = raised_by(lambda: rueda.spark.run(misses, num_proc=1))
    assert type(told) is NoSuchSample
    assert f"{told}" == "sample 7"

    def diverges() -> None:
        if rueda.rank() == 1:
            raise Diverged(3.5, 7)
        rueda.barrier()

    told = raised_by(lambda: rueda.spark.run(diverges, num_proc=2))
    assert type(told) is Diverged
    assert f"{told}" == "diverged to 3.5 in step 7"
    assert told.step == 7
    assert "in diverges" in f"{told.__cause__}"

    def exits() -> None:
        sys.exit("cannot go on")

    with raises(rueda.RuedaError, "sys.exit('cannot go on')"):
        rueda.spark.run(exits, num_proc=2)

    def interrupted(kind: type[BaseException], began: Path) -> None:
        (began / f"{kind.__name__}-{rueda.rank()}").touch(exist_ok=False)
        if rueda.rank() == 1:
            raise kind("in the loader")
        rueda.allreduce(np.ones(1), "gradient")

    for kind in (KeyboardInterrupt, asyncio.CancelledError):
        began = folder / kind.__name__
        began.mkdir()
        told = raised_by(partial(rueda.spark.run, interrupted, (kind, began), num_proc=2))
        assert type(told) is rueda.RuedaError
        assert f"{told}" == f"{kind.__name__}: in the loader"
        assert "raised on rank 1" in told.__notes__
        assert "in interrupted" in f"{told.__cause__}"
        assert len(list(began.iterdir())) == 2
    with raises(rueda.InvalidArgumentError, "what rank 0 returns cannot be pickled"):
        rueda.spark.run(threading.Lock, num_proc=1)
    with raises(rueda.InitializationError, "rank 0 on", "no-such-interface"):
        rueda.spark.run(total, (0,), num_proc=2, nics=["no-such-interface"])
    with raises(rueda.InitializationError, "rank 0 on", "no-such-interface"):
        rueda.spark.run(total, (0,), num_proc=2, env={"RUEDA_INTERFACE": "no-such-interface"})
    assert len(rueda.spark.run(total, (0,))) == 2


def refuse_wrong_kinds(frame: Any) -> None:
    """A wrong argument gets a one-sentence error that shows it; some other types are accepted."""
    wrong: list[tuple[str, Any, str]] = [
        ("args", 5, "args=5: "),
        ("args", "text", "args='text': "),
        ("args", {"add": 1}, "args={'add': 1}: "),
        ("kwargs", [1], "kwargs=[1]: "),
        ("kwargs", {1: 2}, "kwargs={1: 2}: "),
        ("start_timeout", "x", "start_timeout='x'"),
        ("start_timeout", float("nan"), "start_timeout=nan"),
        ("start_timeout", -1, "start_timeout=-1"),
        ("start_timeout", True, "start_timeout=True"),
        ("num_proc", True, "num_proc=True"),
        ("num_proc", 2.5, "num_proc=2.5"),
        ("num_proc", 0, "num_proc=0"),
        ("num_proc", "2", "num_proc='2'"),
    ]
    of_run = [
        ("env", {"A": 3}, "env={'A': 3}: "),
        ("env", {"A=B": "3"}, "env={'A=B': '3'}: "),
        ("env", [("A", "3")], "env=[('A', '3')]: "),
        ("nics", 5, "nics=5: "),
        ("nics", [5], "nics=[5]: "),
    ]
    of_fit = [
        ("prefetch", "4", "prefetch='4'"),
        ("batch_size", True, "batch_size=True"),
        ("columns", 5, "columns=5 "),
        ("columns", [5], "columns=[5] "),
        ("interface", 5, "interface=5: "),
        ("checkpoint", 5, "checkpoint=5 "),
        ("tensorboard", 5, "tensorboard=5 "),
    ]
    for name, value, told in wrong + of_run:
        given = {"args": (0,), "num_proc": 2, name: value}
        with raises(rueda.InvalidArgumentError, told):
            rueda.spark.run(total, **given)
    for name, value, told in wrong + of_fit:
        with raises(rueda.InvalidArgumentError, told):
            rueda.spark.fit(frame, total, **{"num_proc": 2, name: value})
    for fn in (None, "total", (0,)):
        with raises(rueda.InvalidArgumentError, f"fn={fn!r} ", "function"):
            rueda.spark.run(fn, num_proc=2)
        with raises(rueda.InvalidArgumentError, f"train={fn!r} ", "function"):
            rueda.spark.fit(frame, fn, 2)
    with raises(rueda.InvalidArgumentError, "model=None "):
        rueda.spark.predictor(None)


def check_what_cannot_work_is_told_before_the_job(spark: SparkSession, folder: Path) -> None:
    frame = spark.range(0, 4, 1, 2)
    before = jobs(spark)
    for wrong in (0, -1, True, "all"):
        with raises(rueda.InvalidArgumentError, f"num_proc={wrong!r}"):
            rueda.spark.run(total, (0,), num_proc=wrong)
    with raises(rueda.TimeoutError, "num_proc=3 ranks need 3 slots", "has 2 after 0.1 s"):
        rueda.spark.run(total, (0,), num_proc=3, start_timeout=0.1)
    lock = threading.Lock()
    with raises(rueda.InvalidArgumentError, "cannot be pickled", "lock"):
        rueda.spark.run(lambda: lock, num_proc=2)
    with raises(rueda.InvalidArgumentError, "cannot be pickled", "lock"):
        rueda.spark.predictor(lambda inputs: lock)
    for name in ("use_mpi", "extra_mpi_args", "stdout", "stderr", "executable"):
        with raises(rueda.UnsupportedError, f"{name}= has no meaning here"):
            rueda.spark.run(total, (0,), **{name: True})
    with raises(rueda.InvalidArgumentError, "no column 'x', 'y': it has 'id'"):
        rueda.spark.fit(frame, print, 2, columns=["x", "id", "y"])
    named = spark.range(1).selectExpr("id AS `a``b`", "id AS `c.d`")
    assert chosen(named, ["c.d", "a`b"]).columns == ["c.d", "a`b"]
    with raises(rueda.InvalidArgumentError, "columns='id' is a text"):
        rueda.spark.fit(frame, print, 2, columns="id")
    twice = spark.range(4).selectExpr("id AS x", "id AS y", "2 * id AS x")
    for columns in (None, ["y", "x"]):
        with raises(rueda.InvalidArgumentError, "has the column 'x' twice", "df.toDF()"):
            rueda.spark.fit(twice, print, 2, columns=columns)
    assert chosen(twice, ["y"]).columns == ["y"]
    with raises(rueda.InvalidArgumentError, "has the column 'a' twice", "'a', 'A'"):
        rueda.spark.fit(spark.range(4).selectExpr("id AS a", "id AS A"), print, 2)
    with raises(rueda.InvalidArgumentError, "columns=['id', 'id'] has 'id' twice"):
        rueda.spark.fit(frame, print, 2, columns=["id", "id"])
    for given in ([(1, 2.0)], pd.DataFrame({"id": [1]}), frame.rdd, None):
        with raises(rueda.InvalidArgumentError, f"not a {type(given).__name__}", "DataFrame"):
            rueda.spark.fit(given, print, 2)
    connected: Any = object.__new__(type("Connected", (DataFrame,), {}))
    with raises(rueda.UnsupportedError, "Spark Connect"):
        rueda.spark.fit(connected, print, 2)
    refuse_wrong_kinds(frame)
    with raises(rueda.InvalidArgumentError, "batch_size=0"):
        rueda.spark.fit(frame, print, 2, batch_size=0)
    with raises(rueda.InvalidArgumentError, "checkpoint='gopher://host/x'"):
        rueda.spark.fit(frame, print, 2, checkpoint="gopher://host/x")
    assert jobs(spark) == before
    for version in ("3.5.9", "5.0.0", "unknown"):
        with raises(ImportError, "needs pyspark 4", f"pyspark {version} is installed"):
            rueda.spark._needs.check(version)
    rueda.spark._needs.check("4.3.0")


def check_two_jobs_at_once(spark: SparkSession, folder: Path) -> None:
    """Four worlds from four driver threads: each has its own sums, whichever share the slots."""
    found: dict[int, Any] = {}

    def ask(add: int, ranks: int) -> None:
        found[add] = rueda.spark.run(total, (add,), num_proc=ranks)

    threads = [
        threading.Thread(target=ask, args=given) for given in ((10, 2), (20, 2), (30, 1), (40, 1))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert {add: {value for _, _, value in results} for add, results in found.items()} == {
        10: {21.0},
        20: {41.0},
        30: {30.0},
        40: {40.0},
    }


def uneven(spark: SparkSession, sizes: list[int]) -> Any:
    """Returns a DataFrame whose partitions have these numbers of rows."""
    context = spark.sparkContext
    parts = context.parallelize(list(enumerate(sizes)), len(sizes))
    rows = parts.flatMap(lambda part: [(part[0], [float(i)] * 3) for i in range(part[1])])
    return spark.createDataFrame(rows, "part bigint, x array<double>")


def seen(batches: rueda.spark.Batches, leaves: bool = False) -> Any:
    """Returns each rank's rows of three epochs, and statistics; `leaves`: after a partial epoch."""
    first = next(iter(batches)).num_rows if leaves else 0
    epochs = []
    for _ in range(3):
        rows = []
        for batch in batches:
            arrays = rueda.spark.arrays(batch)
            assert arrays["x"].shape == (batch.num_rows, 3)
            rows += arrays["x"][:, 1].tolist()
        epochs.append(rows)
    # The spill file is unlinked, so nothing is left of it however the worker ends.
    assert not [name for name in os.listdir(local_folder(0)) if name.startswith("rueda-")]
    return rueda.allgather_object((epochs, first, batches.statistics))


def check_batches_come_again_and_are_written_once(spark: SparkSession, folder: Path) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "30")
    for sizes in ([100, 41], [70, 0]):
        leaves = 0 not in sizes
        told = rueda.spark.fit(
            uneven(spark, sizes), seen, 2, columns=["x"], batch_size=16, args=[leaves]
        )
        for size, (epochs, first, statistics) in zip(sizes, told, strict=True):
            assert epochs == [[float(i) for i in range(size)]] * 3
            assert first == 16 * leaves
            assert (statistics.rows, statistics.epochs) == (size, 3)
            assert statistics.bytes_read <= statistics.bytes_spilled
            # Once: Arrow adds some hundred bytes per batch of Spark.
            assert statistics.bytes_spilled < statistics.bytes_read + 1000 * (size // 30 + 2)
    # fit() repartitions if Spark has another number of partitions.
    told = rueda.spark.fit(uneven(spark, [5, 6, 7]), seen, 2, columns=["x"])
    assert sum(statistics.rows for _, _, statistics in told) == 18
    both = uneven(spark, [3]).union(uneven(spark, [4]))
    assert both.rdd.getNumPartitions() == 2
    told = rueda.spark.fit(both, seen, 2, columns=["x"])
    assert sum(statistics.rows for _, _, statistics in told) == 7
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def check_without_a_spill_there_is_one_epoch(spark: SparkSession, folder: Path) -> None:
    def once(batches: rueda.spark.Batches) -> tuple[int, int]:
        return sum(batch.num_rows for batch in batches), batches.statistics.bytes_spilled

    frame = uneven(spark, [10, 20])
    assert rueda.spark.fit(frame, once, 2, spill=False) == (10, 0)
    with raises(rueda.RuedaError, "with spill=False the batches can be iterated once"):
        rueda.spark.fit(frame, seen, 2, columns=["x"], spill=False)


def check_a_full_disk_is_told(spark: SparkSession, folder: Path) -> None:
    """Even if only what is left in memory cannot be written, and even when the file is closed."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for rows in (10, 100_000):
        spill = Spill(str(folder))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
        try:
            with raises(rueda.RuedaError, f"cannot be kept in {folder}", "File too large"):
                spill.write(pa.RecordBatch.from_pydict({"x": np.zeros(rows)}))
                spill.finish()
            spill.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def check_a_checkpoint_is_where_it_was_asked_for(spark: SparkSession, folder: Path) -> None:
    place = folder / "my runs #1, 50%41"
    with rueda.world(0, 1):
        checkpoint_at(place).save({"epoch": 3})
        assert checkpoint_at(str(place)).load() == {"epoch": 3}
    assert [path.name for path in place.iterdir()] == ["rueda-checkpoint.pickle"]


def check_nulls_are_refused(spark: SparkSession, folder: Path) -> None:
    frame = spark.createDataFrame([(1, 1.0), (2, None), (3, 3.0)], "a int, b double")

    def count(batches: rueda.spark.Batches) -> int:
        rows = sum(batch.num_rows for batch in batches)
        return int(rueda.allreduce(np.array([rows]), "rows", rueda.Sum)[0])

    with raises(rueda.InvalidArgumentError, "column 'b' has nulls", "dropna(subset=['b'])"):
        rueda.spark.fit(frame, count, 2)
    assert rueda.spark.fit(frame, count, 2, columns=["a"]) == 3
    assert rueda.spark.fit(frame, count, 2, nulls=True) == 3
    for kind, values in (("double", [1.0, None, 2.0]), ("array<double>", [[1.0], [None], [2.0]])):
        rows = [([values[0], values[1]],), ([values[0], values[2]],)]
        within = spark.createDataFrame(rows, f"x array<{kind}>").coalesce(1)
        told = raised_by(lambda within=within: rueda.spark.fit(within, count, 1))
        assert type(told) is rueda.InvalidArgumentError, str(told)
        assert "lists of column 'x' have nulls in partition 0, 1 of them in 2 rows" in f"{told}"
        (condition,) = re.findall(r'df\.where\("(.*)"\)', f"{told}")
        assert rueda.spark.fit(within.where(condition), count, 1) == 1
    with raises(rueda.InvalidArgumentError, "column 'x' has lists of 1, 2 values"):
        rueda.spark.fit(
            spark.createDataFrame([([1.0],), ([1.0, 2.0],)], "x array<double>").coalesce(1),
            lambda batches: [rueda.spark.arrays(batch) for batch in batches],
            1,
        )


def digits() -> list[tuple[list[float], int]]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return [((images[i] / 16).tolist(), int(labels[i])) for i in order]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def learn(batches: rueda.spark.Batches) -> dict[str, Any]:
    model = network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = rueda.torch.DistributedOptimizer(optimizer, model.named_parameters())
    for _ in range(EPOCHS):
        for batch in batches:
            arrays = rueda.spark.arrays(batch)
            optimizer.zero_grad()
            inputs = torch.from_numpy(arrays["features"]).float()
            cross_entropy(model(inputs), torch.from_numpy(arrays["label"])).backward()
            optimizer.step()
        batches.equalize(model, optimizer)
        parameters = torch.cat([each.detach().ravel() for each in model.parameters()]).numpy()
        assert len(set(rueda.allgather_object(parameters.tobytes()))) == 1
    return model.state_dict()


def check_models_that_differ_are_told(spark: SparkSession, folder: Path) -> None:
    def differs(batches: rueda.spark.Batches) -> None:
        model = torch.nn.Linear(3, 2 + rueda.rank())
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = rueda.torch.DistributedOptimizer(optimizer, model.named_parameters())
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    told = raised_by(lambda: rueda.spark.fit(spark.range(0, 4, 1, 2), differs, 2))
    assert type(told) is rueda.MismatchError
    assert "rank 0" in f"{told}"
    assert "rank 1" in f"{told}"


def accuracy(spark: SparkSession, state: dict[str, Any]) -> float:
    predict = rueda.spark.predictor(network(), state, then=lambda scores: scores.argmax(1))
    held_out = spark.createDataFrame(digits()[:HELD_OUT], DIGITS)
    told = held_out.mapInArrow(predict, f"{DIGITS}, prediction bigint").collect()
    assert len(told) == HELD_OUT
    return sum(row["label"] == row["prediction"] for row in told) / HELD_OUT


def check_digits_are_learned(spark: SparkSession, folder: Path) -> None:
    """From the DataFrame to predictions: two ranks learn as well as one, even with uneven parts."""
    rows = digits()[HELD_OUT:][:1408]  # whole steps of 32
    # Slices of one list: each rank has every other row, so a step of both sees what a step of one
    # sees.
    apart = spark.sparkContext.parallelize(rows[1::2] + rows[::2], 2)
    alone = spark.sparkContext.parallelize(rows, 1)
    one = rueda.spark.fit(spark.createDataFrame(alone, DIGITS), learn, 1, batch_size=32)
    two = rueda.spark.fit(spark.createDataFrame(apart, DIGITS), learn, 2, batch_size=16)
    first = accuracy(spark, one)
    second = accuracy(spark, two)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-3
    assert first > 0.94
    assert abs(second - first) <= 0.005
    heavy = spark.sparkContext.parallelize([rows[:1000], rows[1000:]], 2).flatMap(list)
    uneven = rueda.spark.fit(spark.createDataFrame(heavy, DIGITS), learn, 2, batch_size=16)
    assert accuracy(spark, uneven) > 0.94


def check_predictions_have_a_row_for_each(spark: SparkSession, folder: Path) -> None:
    frame = spark.createDataFrame(
        [(1, [1.0, 2.0]), (2, [3.0, 4.0])], "id int, features array<double>"
    )
    twice = frame.mapInArrow(
        rueda.spark.predictor(lambda inputs: 2 * inputs, output="twice"),
        "id int, features array<double>, twice array<float>",
    )
    assert [row["twice"] for row in twice.collect()] == [[2.0, 4.0], [6.0, 8.0]]
    batch = pa.RecordBatch.from_pydict({"features": [[1.0, 2.0], [3.0, 4.0]]})
    with raises(rueda.InvalidArgumentError, "no column 'x' to predict from; there are features"):
        list(rueda.spark.predictor(lambda inputs: inputs, column="x")(iter([batch])))
    with raises(rueda.InvalidArgumentError, "the model has returned an array of shape ()"):
        list(rueda.spark.predictor(lambda inputs: inputs.sum())(iter([batch])))
    examples = doctest.testmod(sys.modules["rueda.spark.arrays"], extraglobs={"rueda": rueda})
    assert examples.attempted > 0
    assert examples.failed == 0


def check_elephas_model_learns(spark: SparkSession, folder: Path) -> None:
    """Each mode and frequency of Elephas, on an RDD with uneven parts; and what it refuses."""
    rows = digits()[HELD_OUT:]
    pairs = to_simple_rdd(
        spark.sparkContext,
        np.array([image for image, _ in rows]),
        np.array([label for _, label in rows]),
    )
    images, labels = map(np.array, zip(*digits()[:HELD_OUT], strict=True))
    averaged = partial(torch.optim.SGD, lr=0.1, momentum=0.9), 0.9
    added_up = partial(torch.optim.SGD, lr=0.1), 0.7
    ways = {
        ("synchronous", "batch"): averaged,
        ("synchronous", "epoch"): averaged,
        ("asynchronous", "epoch"): added_up,
        ("hogwild", "batch"): added_up,
    }
    for (mode, frequency), (sgd, least) in ways.items():
        model = SparkModel(
            network(), mode, frequency, num_workers=2, optimizer=sgd, loss=cross_entropy
        )
        before = model.evaluate(images, labels)
        model.fit(pairs, epochs=4)
        (history,) = model.training_histories
        assert len(history["loss"]) == 4
        assert history["loss"][-1] < history["loss"][0]
        assert model.evaluate(images, labels) < before / 2
        right = (model.predict(images).argmax(1) == labels).mean()
        assert right > least, (mode, frequency, right)
    frame = spark.createDataFrame(digits()[:20], DIGITS)
    told = model.predict(frame).collect()
    found = [row["prediction"] for row in told]
    np.testing.assert_allclose(found, model.predict(images[:20]), rtol=1e-5, atol=1e-5)
    model.save(folder / "model.pt")
    assert set(torch.load(folder / "model.pt")) == set(network().state_dict())
    before_jobs = jobs(spark)
    with raises(rueda.InvalidArgumentError, "mode='parallel'"):
        SparkModel(network(), "parallel", optimizer=sgd, loss=cross_entropy)
    with raises(rueda.InvalidArgumentError, "frequency='daily'"):
        SparkModel(network(), "synchronous", "daily", optimizer=sgd, loss=cross_entropy)
    with raises(rueda.UnsupportedError, "compiled model of Keras 3", "not a str"):
        SparkModel("model", "synchronous", optimizer=sgd, loss=cross_entropy)
    with raises(rueda.InvalidArgumentError, "needs optimizer= and loss="):
        SparkModel(network(), "synchronous", optimizer=sgd)
    with raises(rueda.UnsupportedError, "validation_split=", "randomSplit()"):
        model.fit(pairs, validation_split=0.1)
    with raises(rueda.InvalidArgumentError, "a DataFrame or an RDD", "not a list"):
        model.fit(rows)
    assert jobs(spark) == before_jobs


@cache
def doubled() -> Any:
    """A layer defined by the application."""
    import keras

    class Doubled(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return 2 * inputs

    return Doubled


def check_elephas_model_of_keras_learns(spark: SparkSession, folder: Path) -> None:
    """As Elephas' users write it: compiled, with metrics; each mode and frequency, uneven parts."""
    import keras

    def compiled(optimizer: Any) -> Any:
        keras.utils.set_random_seed(0)
        layers = [
            keras.Input([64]),
            keras.layers.Dense(64, "relu"),
            keras.layers.BatchNormalization(momentum=0.9),
            doubled()(),
            keras.layers.Dense(10, "softmax"),
        ]
        model = keras.Sequential(layers)
        model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
        return model

    rows = digits()[HELD_OUT:]
    parts = spark.sparkContext.parallelize([rows[:1000], rows[1000:]], 2).flatMap(list)
    pairs = parts.map(lambda row: (row[0], np.eye(10)[row[1]]))
    images, labels = map(np.array, zip(*digits()[:HELD_OUT], strict=True))
    ways = {
        ("synchronous", "batch"): keras.optimizers.Adam(0.003, clipnorm=1.0),
        ("synchronous", "epoch"): keras.optimizers.SGD(0.1, momentum=0.9),
        ("asynchronous", "epoch"): keras.optimizers.SGD(0.05),
        ("hogwild", "batch"): keras.optimizers.SGD(0.05),
    }
    for (mode, frequency), optimizer in ways.items():
        model = SparkModel(
            compiled(optimizer),
            mode=mode,
            frequency=frequency,
            num_workers=2,
            custom_objects={"Doubled": doubled()},
            parameter_server_mode="http",
            port=4000,
        )
        before, _ = model.evaluate(images, np.eye(10)[labels])
        model.fit(pairs, epochs=4, batch_size=32, verbose=0)
        (history,) = model.training_histories
        assert [len(values) for values in history.values()] == [4, 4]
        assert history["loss"][-1] < history["loss"][0]
        assert history["accuracy"][-1] > history["accuracy"][0]
        after, right = model.evaluate(images, np.eye(10)[labels])
        assert after < before / 2
        assert right > 0.8, (mode, frequency, right)
        assert right == np.float32((model.predict(images).argmax(1) == labels).mean())
    frame = spark.createDataFrame(digits()[:20], DIGITS)
    found = [row["prediction"] for row in model.predict(frame).collect()]
    np.testing.assert_allclose(found, model.predict(images[:20]), rtol=1e-5, atol=1e-5)
    model.save(folder / "model.keras")
    read = keras.saving.load_model(folder / "model.keras", {"Doubled": doubled()})
    np.testing.assert_array_equal(read.predict(images, verbose=0), model.predict(images))
    with raises(rueda.InvalidArgumentError, "not compiled", "compile()"):
        SparkModel(keras.Sequential([keras.Input([2]), keras.layers.Dense(1)]))
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    with raises(rueda.InvalidArgumentError, "has no weights yet", "keras.Input"):
        SparkModel(unbuilt)

    class OfItsOwn(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    own = OfItsOwn([keras.Input([2]), keras.layers.Dense(1)])
    own.compile("sgd", "mse")
    with raises(rueda.UnsupportedError, "OfItsOwn has a train_step()", "rueda.keras"):
        SparkModel(own)
    backend, keras.backend.backend = keras.backend.backend, lambda: "jax"
    try:
        with raises(rueda.UnsupportedError, "this process has jax", "KERAS_BACKEND=torch"):
            SparkModel(compiled("sgd"))
    finally:
        keras.backend.backend = backend


def check_elephas_model_of_keras_trains_as_one(spark: SparkSession, folder: Path) -> None:
    """Synchronous: two ranks with half the batch equal one rank, and Keras itself."""
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    first = model.get_weights()
    random = np.random.default_rng(0)
    x = random.standard_normal((64, 3)).astype(np.float32)
    y = (x @ [1.0, 2.0, 3.0]).astype(np.float32)
    order = np.concatenate(
        [np.arange(0, 64, 2), np.arange(1, 64, 2)]
    )  # so that each rank has every other row
    found = []
    for ranks in (1, 2):
        model.set_weights(first)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        way = order if ranks == 2 else np.arange(64)
        pairs = spark.sparkContext.parallelize(list(zip(x[way], y[way], strict=True)), ranks)
        shared = SparkModel(model, "synchronous", "batch", num_workers=ranks)
        shared.fit(pairs, epochs=3, batch_size=16 // ranks)
        found.append(model.get_weights())
    model.set_weights(first)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.fit(x, y, epochs=3, batch_size=16, shuffle=False, verbose=0)
    for weights in found:
        for ours, theirs in zip(weights, model.get_weights(), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def check_ranks_of_elephas_model_drop_other_units(spark: SparkSession, folder: Path) -> None:
    """With every generator; the same units again for the same seed on the driver."""
    import keras

    rows = spark.sparkContext.parallelize([(np.ones(64), 1.0)] * 2, 2)
    way = {"mode": "synchronous", "frequency": "batch", "num_workers": 2, "batch_size": 1}

    def by_keras(seed: int | None) -> Any:
        layers = [
            keras.Input([64]),
            keras.layers.Dropout(0.5, seed=seed),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return SparkModel(model, **way)

    def by_torch() -> Any:
        linear = torch.nn.Linear(64, 1, bias=False)
        torch.nn.init.zeros_(linear.weight)
        layers = [torch.nn.Dropout(0.5), linear, torch.nn.Flatten(0)]
        sgd, mse = partial(torch.optim.SGD, lr=0.1), torch.nn.functional.mse_loss
        return SparkModel(torch.nn.Sequential(*layers), optimizer=sgd, loss=mse, **way)

    for build in (partial(by_keras, 1), partial(by_keras, None), by_torch):
        found = []
        for _ in range(2):
            keras.utils.set_random_seed(0)
            model = build()
            model.fit(rows, epochs=1)
            (kernel,) = (
                np.asarray(each.detach())
                for each in model.master_network.parameters()
                if each.is_floating_point()
            )
            found.append(kernel)
        # After one step a weight shows how many ranks have kept its input.
        kept, counts = np.unique(np.round(2 * kernel / kernel.max()), return_counts=True)
        assert kept.tolist() == [0, 1, 2], (build, kept)
        assert counts.min() > 4
        np.testing.assert_array_equal(*found)


def check_curves_for_tensorboard(spark: SparkSession, folder: Path) -> None:
    """Rank 0 writes them, also after an attempt that got further; a bad path gives a warning."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def train(batches: Any, first: int) -> list[str]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for step in range(first, first + 3):
                batches.summaries.scalars(step, {"loss": step / 4, "rank": rueda.rank()})
            batches.summaries.close()
        return [str(warning.message) for warning in told]

    frame = spark.createDataFrame([(1,)] * 4, "n int")
    curves = folder / "curves"
    for first in (0, 2):
        assert rueda.spark.fit(frame, train, 2, tensorboard=f"file://{curves}", args=[first]) == []
    assert len(list(curves.glob("events.out.tfevents.*"))) == 2  # one per run, not per rank
    found = EventAccumulator(str(curves)).Reload()
    assert [(p.step, p.value) for p in found.Scalars("loss")] == [(n, n / 4) for n in range(5)]
    assert {p.value for p in found.Scalars("rank")} == {0}
    with rueda.world(0, 1):
        for step in range(2):  # within one second
            once = summaries_at(folder / "at once")
            once.scalars(step, {"loss": 1.0})
            once.close()
    assert len(list((folder / "at once").iterdir())) == 2
    taken = folder / "taken"
    taken.write_text("a file")
    (told,) = rueda.spark.fit(frame, train, 2, tensorboard=taken / "curves", args=[0])
    assert told.startswith("nothing could be written for TensorBoard to ")
    before = jobs(spark)
    with raises(rueda.InvalidArgumentError, "tensorboard='nowhere://x'", "fsspec", "nowhere"):
        rueda.spark.fit(frame, train, 2, tensorboard="nowhere://x")
    assert jobs(spark) == before
    assert rueda.spark.fit(frame, train, 2, args=[0]) == []


def check_tfcluster_feeds_all_rows(spark: SparkSession, folder: Path) -> None:
    """Each row comes once per epoch, even with uneven partitions, and no rank waits for ever.

    All rows are read before the first step: Keras reads ahead too.
    """

    def count(args: str, ctx: Any) -> Any:
        feed = DataFeed(ctx.mgr, input_mapping={"_1": "number"} if args == "named" else None)
        batches = []
        while not feed.should_stop():
            batch = feed.next_batch(8)
            batches.append(
                batch["number"].tolist() if args == "named" else [row[0] for row in batch]
            )
        for _ in batches:
            rueda.allreduce(np.ones(1), "step")
        rank = (ctx.job_name, ctx.task_index, ctx.executor_id, ctx.num_workers)
        told = (rank, len(batches), list(chain.from_iterable(batches)))
        if args == "rows":  # the rank joins when the function ends
            return told
        feed.terminate()
        return rueda.allgather_object(told)

    context = spark.sparkContext
    numbers = context.parallelize([range(30), range(30, 35)], 2).flatMap(list)
    rows = numbers.map(lambda number: (number, [0.5, number]))
    for args in ("named", "rows"):
        cluster = tfcluster.run(
            context, count, args, 2, 0, input_mode=tfcluster.InputMode.SPARK, master_node="chief"
        )
        cluster.train(rows, 3)
        cluster.shutdown()
        first = (("chief", 0, 0, 2), 12, list(range(30)) * 3)
        second = (("worker", 0, 1, 2), 2, list(range(30, 35)) * 3)
        assert cluster.result == (first if args == "rows" else [first, second])
    alone = tfcluster.run(context, lambda args, ctx: (args, ctx.task_index, ctx.mgr), "given", 2)
    assert alone.result == ("given", 0, None)
    for refused in ({"num_ps": 1}, {"tensorboard": True}, {"driver_ps_nodes": True}):
        with raises(rueda.UnsupportedError, next(iter(refused)), "not available"):
            tfcluster.run(context, count, None, 2, **refused)
    with raises(rueda.UnsupportedError, "inference() is not available", "rueda.spark.predictor"):
        alone.inference(rows)
    with raises(rueda.InvalidArgumentError, "num_epochs=0"):
        alone.train(rows, 0)
    with raises(rueda.InvalidArgumentError, "must be a tuple of numbers", "the first is 0"):
        alone.train(numbers)


def check_an_rdd_is_typed_by_more_than_its_first_tuple(spark: SparkSession, folder: Path) -> None:
    """Whole numbers may be followed by fractions; a late fraction is an error with its column."""
    context = spark.sparkContext
    pairs: list[Any] = [([0, 0], 1.0), (np.array([0.5, 2.0], np.float32), 3), ([1, 2], 0)]
    frame = as_frame(context.parallelize(pairs, 2), ("features", "label"))
    assert frame.dtypes == [("features", "array<double>"), ("label", "double")]
    assert [tuple(row) for row in frame.collect()] == [([0, 0], 1), ([0.5, 2], 3), ([1, 2], 0)]
    whole = as_frame(context.parallelize([(True, np.uint8(7))], 1))
    assert [tuple(row) for row in whole.collect()] == [(1, 7)]
    refused: list[tuple[list[Any], str]] = [
        ([(1, 2), (1,)], "must be a tuple of 2 numbers or arrays, as the first; one is (1,)"),
        ([(1, 2), 3], "must be a tuple of 2 numbers or arrays, as the first; one is 3"),
        ([(1,), ([2],)], "column _1 of the RDD begins with numbers, and one is [2]"),
        ([(1,), ("a",)], "the RDD's values are numbers or arrays of them, not 'a'"),
        ([(1,), (None,)], "the RDD's values are numbers or arrays of them, not None"),
        ([(1,), (2**63,)], "column _1 of the RDD has 9223372036854775808"),
    ]
    for rows, text in refused:
        with raises(rueda.InvalidArgumentError, text):
            as_frame(context.parallelize(rows, 1))
    late = as_frame(context.parallelize([(0,)] * 100 + [(0.5,)], 1))
    told = raised_by(late.collect)
    assert (
        "column _1 of the RDD begins with 100 tuples of whole numbers, and one is 0.5" in f"{told}"
    )


class Held:
    """Yields a second batch only once somebody has begun to end the feed."""

    def __init__(self) -> None:
        self.is_read = threading.Event()
        self.feed: DataFeed | None = None
        self.met: list[int] = []

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        batch = pa.RecordBatch.from_pydict({"x": [1.0, 2.0]})
        yield batch
        self.is_read.set()
        deadline = time.monotonic() + 60
        while self.feed is None or not self.feed.should_stop():
            assert time.monotonic() < deadline, "nobody ends the feed"
            time.sleep(0.01)
        yield batch
        raise AssertionError("read on")

    def meet(self, count: int) -> None:
        time.sleep(0.01)  # meanwhile others end the feed too
        self.met.append(count)


def check_a_feed_ends_while_another_thread_reads(spark: SparkSession, folder: Path) -> None:
    """Like the reader of Keras on TensorFlow when the function has ended."""
    held = Held()
    held.feed = DataFeed(SimpleNamespace(batches=held, epochs=3, feeds=[]))
    taken: list[Any] = []
    reader = threading.Thread(target=lambda: taken.append(held.feed.next_batch(100)))
    reader.start()
    assert held.is_read.wait(60)
    found: list[list[int]] = []

    def end(feed: DataFeed) -> None:
        feed.terminate()
        found.append([*held.met])

    enders = [threading.Thread(target=end, args=(held.feed,)) for _ in range(4)]
    for thread in enders:
        thread.start()
    for thread in [reader, *enders]:
        thread.join(60)
    assert taken == [[(1.0,), (2.0,)]]
    assert found == [[1]] * 4
    assert held.feed.next_batch(100) == []


def as_main(script: str, folder: Path, *arguments: str) -> str:
    """Runs a script in this session, without ending it; returns what the script writes."""
    path = folder / "script.py"
    path.write_text(re.sub(r"^ *(spark|context)\.stop\(\)\n", "", script, flags=re.MULTILINE))
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as written:
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before
    return written.getvalue()


def check_the_example_of_the_page(spark: SparkSession, folder: Path) -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    (script, *_) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    right, rows = re.findall(r"^right: (\d+) of (\d+)$", as_main(script, folder), re.MULTILINE)[0]
    assert int(rows) == 1797
    assert int(right) > 0.95 * 1797


def check_the_example_for_users_of_elephas(spark: SparkSession, folder: Path) -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    (script,) = re.findall(
        r"^## From Elephas\n\n```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    images, labels = load_digits(return_X_y=True)
    given: dict[str, Any] = {"spark": spark, "images": images / 16, "labels": labels}
    exec(script, given)
    _, right = given["model"].evaluate(images / 16, labels)
    assert right > 0.9


def check_the_example_for_users_of_tensorflowonspark(spark: SparkSession, folder: Path) -> None:
    script = (ROOT / "examples" / "python" / "digits_spark.py").read_text()
    as_main(script, folder, "--epochs", "4", "--model", str(folder / "digits.keras"))
    import keras

    model = keras.saving.load_model(folder / "digits.keras")
    images, labels = load_digits(return_X_y=True)
    scores = model.predict(images[:HELD_OUT] / 16, verbose=0)
    assert (scores.argmax(1) == labels[:HELD_OUT]).mean() > 0.8


# From here on workers are killed; new ones load torch again, which takes most of their start.


def check_a_killed_worker_makes_all_begin_anew(spark: SparkSession, folder: Path) -> None:
    """Training resumes from the checkpoint, and no rank enters the previous attempt's world."""

    def train(batches: rueda.spark.Batches) -> list[Any]:
        begun = batches.checkpoint.load() or []
        is_second = (folder / "killed").exists()
        rows = 0
        for epoch in range(len(begun), 4):
            rows = sum(batch.num_rows for batch in batches)
            rows = int(rueda.allreduce(np.array([rows]), "rows", rueda.Sum)[0])
            begun = [*begun, (epoch, rows, is_second)]
            batches.checkpoint.save(begun)
            if rueda.rank() == 1 and epoch == 1 and not (folder / "killed").exists():
                rueda.barrier()
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if epoch == 1 and not (folder / "killed").exists():
                rueda.barrier()
        return begun

    frame = spark.range(0, 1000, 1, 2)
    found = rueda.spark.fit(frame, train, 2, checkpoint=folder / "state")
    assert [epoch for epoch, _, _ in found] == [0, 1, 2, 3]
    assert {rows for _, rows, _ in found} == {1000}
    assert [is_second for _, _, is_second in found] == [False, False, True, True]
    # Again with the same folder: nothing is left to train.
    assert rueda.spark.fit(frame, train, 2, checkpoint=folder / "state") == found


def check_a_killed_executor_makes_all_begin_anew(spark: SparkSession, folder: Path) -> None:
    def loses() -> tuple[int, float]:
        rueda.barrier()
        if rueda.rank() == 1 and not (folder / "killed").exists():
            (folder / "killed").touch()
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
            os.kill(int(daemon[1]), signal.SIGKILL)
        return rueda.rank(), float(rueda.allreduce(np.ones(1), "step", rueda.Sum)[0])

    assert rueda.spark.run(loses, num_proc=2) == [(0, 2.0), (1, 2.0)]
    assert (folder / "killed").exists()


def check_what_spark_computes_before_may_fail(spark: SparkSession, folder: Path) -> None:
    """One rank's rows fail: Spark reports it after its attempts, as in every job; nobody hangs."""
    frame = spark.range(0, 8, 1, 2).selectExpr("assert_true(id < 6, 'a bad row in Spark') AS x")

    def count(batches: rueda.spark.Batches) -> float:
        rows = sum(batch.num_rows for batch in batches)
        return float(rueda.allreduce(np.ones(rows), "rows")[0])

    told = raised_by(lambda: rueda.spark.fit(frame, count, 2, nulls=True))
    assert "a bad row in Spark" in f"{told}"
    assert len(rueda.spark.run(total, (0,))) == 2


def moved(processes: list[int]) -> int:
    """Returns bytes read and written, in files and sockets; see benchmarks/spark/measure.py."""
    found = 0
    for process in processes:
        for line in Path(f"/proc/{process}/io").read_text().splitlines():
            name, _, value = line.partition(": ")
            found += int(value) if name in ("rchar", "wchar") else 0
    return found


def check_nothing_goes_through_the_driver(spark: SparkSession, folder: Path) -> None:
    """Rows and gradients are many times larger than what the driver's processes read and write.

    Uses its own session: the kernel does not count what Spark sends by epoll, its default.
    """

    def train(batches: rueda.spark.Batches) -> tuple[int, int]:
        rows = sum(rueda.spark.arrays(batch)["x"].size for batch in batches)
        for _ in range(20):
            rueda.allreduce(np.ones(1 << 19), "gradient")
        return rows, rueda.metrics()["allreduce_tensor_bytes"]

    spark.stop()
    with cluster(**{"spark.io.mode.default": "NIO"}) as own:
        frame = own.range(0, 2_000_000, 1, 2).selectExpr("rand() AS x")
        java: Any = own.sparkContext._jvm
        driver = [os.getpid(), int(java.java.lang.ProcessHandle.current().pid())]
        before = moved(driver)
        rows, sent = rueda.spark.fit(frame, train, 2)
        driver_bytes = moved(driver) - before
    print(f"driver {driver_bytes} bytes, rows {8 * rows}, reduced {sent}", flush=True)
    assert (rows, sent) == (1_000_000, 20 << 22)
    assert driver_bytes < 8 * rows / 4


def check_dynamic_allocation_is_refused(spark: SparkSession, folder: Path) -> None:
    """Uses its own session, which is the last."""
    spark.stop()
    other = session("local[1]", **{"spark.dynamicAllocation.enabled": "true"})
    with raises(rueda.UnsupportedError, "spark.dynamicAllocation.enabled is true"):
        rueda.spark.run(total, (0,), num_proc=1)
    other.stop()
    other = session("local[1]", **{"spark.dynamicAllocation.enabled": "false"})
    with raises(rueda.TimeoutError, "num_proc=2 ranks need 2 slots", "local[1] has 1: ask"):
        rueda.spark.run(total, (0,), num_proc=2)
    assert len(rueda.spark.run(total, (0,))) == 1
    other.stop()
    with raises(rueda.InvalidArgumentError, "no active SparkContext"):
        rueda.spark.run(total, (0,), num_proc=1)


def main(root: Path, wanted: list[str]) -> None:
    checks: list[Callable[[SparkSession, Path], None]] = [
        act
        for name, act in list(globals().items())
        if name.startswith("check_") and act.__module__ == __name__
    ]
    torch.set_num_threads(1)
    with cluster(**{"spark.stage.maxConsecutiveAttempts": "2"}) as spark:
        for act in checks:
            if wanted and act.__name__ not in wanted:
                continue
            begun = time.perf_counter()
            folder = root / act.__name__
            folder.mkdir()
            act(spark, folder)
            print("ok", act.__name__, f"{time.perf_counter() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
