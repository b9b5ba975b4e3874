"""Trains on a DataFrame, whose rows Spark feeds to the ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from rueda import lifecycle
from rueda.engines.given import count_of, function_of, keywords_of, positionals_of, seconds_of
from rueda.errors import InvalidArgumentError
from rueda.spark.batches import Batches
from rueda.spark.checkpoints import Checkpoint, checkpoint_at
from rueda.spark.refusals import checked_size, chosen
from rueda.spark.stage import Stage, run_stage
from rueda.spark.summaries import Summaries, summaries_at

__all__ = ["fit"]


def fit(
    df: DataFrame,
    train: Callable[..., Any],
    num_proc: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    batch_size: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    join: bool = True,
    nulls: bool = False,
    spill: bool = True,
    prefetch: int = 4,
    start_timeout: float = 60.0,
    interface: str = "",
) -> Any:
    """Calls ``train(batches, *args, **kwargs)`` on ``num_proc`` ranks, each of which gets its share of the rows.

    Returns rank 0's result and discards the others. Ranks are tasks of a barrier stage, with the failure handling of
    :func:`rueda.spark.run`. ``batches`` is a :class:`rueda.spark.Batches`: iterate over it once per epoch. Rows go from
    Spark's executors to the ranks on the same hosts, and gradients directly between ranks, neither through the driver.

    - ``num_proc``: the number of ranks, by default ``spark.default.parallelism``. If the DataFrame has that many
      partitions, each becomes a rank's share, unchanged; otherwise Spark's ``repartition(num_proc)`` makes the shares.
    - ``columns``: the columns to feed, all by default. ``batch_size``: rows per batch, except for the last of an epoch;
      by default Spark's own batches (``spark.sql.execution.arrow.maxRecordsPerBatch``, 10,000 rows).
    - ``checkpoint``: a folder for ``batches.checkpoint`` that all executors reach: ``s3://``, ``hdfs://``, a path.
    - ``tensorboard``: a folder for ``batches.summaries``, to which rank 0 writes through fsspec; the user starts
      TensorBoard on it.
    - ``join``: whether each rank joins automatically at the end of an epoch, for training that averages in every step.
    - ``nulls``: whether columns may contain nulls.
    - ``spill``: whether batches are kept on the executor's disk for later epochs. ``prefetch``: how many of Spark's
      batches are read ahead.

    Before the job starts, raises the errors of :func:`rueda.spark.run`, and :class:`rueda.InvalidArgumentError` for
    missing columns. Raises the latter too when it reads a batch with nulls, and names the column.
    """
    options = {
        "batch_size": None if batch_size is None else count_of("batch_size", batch_size, "rows"),
        "prefetch": count_of("prefetch", prefetch, "batches"),
        "nulls": nulls,
        "spill": spill,
        "join": join,
    }
    given = (
        function_of("train", train),
        positionals_of("args", args),
        keywords_of("kwargs", kwargs),
    )
    timeout = seconds_of("start_timeout", start_timeout)
    if not isinstance(interface, str):
        raise InvalidArgumentError(f"interface={interface!r}: pass the name of a network interface")
    frame = chosen(df, columns)
    size = checked_size(frame.sparkSession.sparkContext, num_proc)
    places = checkpoint_at(checkpoint), summaries_at(tensorboard)
    act = _Training(*given, *places, options)
    shares = frame if _has_partitions(frame, size) else frame.repartition(size)
    return run_stage(shares, act, Stage(size, timeout, interface))[0]


@dataclass(frozen=True)
class _Training:
    train: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    checkpoint: Checkpoint
    summaries: Summaries
    options: dict[str, Any]

    def __call__(self, source: Iterator[pa.RecordBatch], at_end: ExitStack) -> Any:
        context = TaskContext.get()
        assert context is not None
        places = self.checkpoint, self.summaries
        batches = Batches(source, context.partitionId(), *places, **self.options)
        at_end.callback(batches.close)
        at_end.callback(self.summaries.close)
        result = self.train(batches, *self.args, **self.kwargs)
        return result if lifecycle.rank() == 0 else None


def _has_partitions(frame: DataFrame, size: int) -> bool:
    """Whether the DataFrame has ``size`` partitions that can form a barrier stage.

    Spark refuses a barrier stage if an RDD in it, back to the last exchange, has another number of partitions, as after
    a union. False for adaptive plans, which have exchanges: their number of partitions is known only once they run.
    """
    execution: Any = frame._jdf.queryExecution()
    if execution.executedPlan().getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        return False
    rest = [execution.toRdd()]
    while rest:
        rdd = rest.pop()
        if rdd.getNumPartitions() != size:
            return False
        dependencies = rdd.dependencies()
        for i in range(dependencies.size()):
            dependency = dependencies.apply(i)
            if dependency.getClass().getSimpleName() != "ShuffleDependency":
                rest.append(dependency.rdd())
    return True
