"""Checks on the driver that reject impossible requests, in one sentence, before Spark starts a job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from rueda.engines.given import count_of
from rueda.errors import InvalidArgumentError, TimeoutError, UnsupportedError

__all__ = ["active_session", "check_cluster", "checked_size", "chosen"]

_LOOK = 0.2  # seconds between checks of the number of slots
_ALLOCATION = "spark.dynamicAllocation.enabled"


def active_session() -> SparkSession:
    """The session of this process. Raises :class:`rueda.InvalidArgumentError` if there is none."""
    if SparkContext._active_spark_context is None:
        raise InvalidArgumentError(
            "there is no active SparkContext in this process: create a SparkSession first"
        )
    return SparkSession.builder.getOrCreate()


def checked_size(context: SparkContext, num_proc: int | None) -> int:
    """``num_proc``, by default Spark's default parallelism."""
    size = context.defaultParallelism if num_proc is None else num_proc
    return count_of("num_proc", size, "ranks")


def check_cluster(context: SparkContext, size: int, timeout: float) -> None:
    """Returns when there are slots for ``size`` tasks at once.

    Raises :class:`rueda.UnsupportedError` with dynamic allocation, which Spark's barrier stages exclude, and
    :class:`rueda.TimeoutError` if there are still too few slots after ``timeout`` seconds, in local mode at once.
    """
    if context.getConf().get(_ALLOCATION, "false").lower() == "true":
        raise UnsupportedError(
            f"{_ALLOCATION} is true, which excludes Spark's barrier stages: set it to false and ask for as many "
            "executors as ranks"
        )
    # Spark's own check for a barrier stage, which it repeats for ten minutes before it gives up.
    scala: Any = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    waits = not scala.isLocal()  # in local mode all slots exist from the start
    deadline = time.monotonic() + timeout
    while (slots := scala.maxNumConcurrentTasks(profile)) < size:
        if not waits or time.monotonic() > deadline:
            raise TimeoutError(
                f"num_proc={size} ranks need {size} slots for tasks at once, and {context.master} has {slots}"
                + (f" after {timeout:g} s" if waits else "")
                + ": ask for fewer ranks, or start Spark with more executors or cores"
            )
        time.sleep(_LOOK)


def chosen(frame: DataFrame, columns: Sequence[str] | None) -> DataFrame:
    """The requested columns, in that order; all by default.

    Raises :class:`rueda.InvalidArgumentError` for anything but a DataFrame and for missing or ambiguous columns, which
    it names, and :class:`rueda.UnsupportedError` for a DataFrame of Spark Connect.
    """
    if not isinstance(frame, DataFrame):
        raise InvalidArgumentError(
            f"rueda.spark.fit() trains on a DataFrame of Spark, not a {type(frame).__name__}: make one by "
            "spark.createDataFrame()"
        )
    if not isinstance(frame, ClassicDataFrame):
        raise UnsupportedError(
            "rueda.spark needs a DataFrame of a classic SparkSession: Spark Connect does not report slots and stages"
        )
    if columns is None:
        _check_names(frame, frame.columns)
        return frame
    if isinstance(columns, str):
        raise InvalidArgumentError(f"columns={columns!r} is a text: pass a list of names")
    if not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise InvalidArgumentError(f"columns={columns!r} is not a list of names")
    missing = [name for name in columns if name not in frame.columns]
    if missing or not columns:
        raise InvalidArgumentError(
            f"the DataFrame has no column {', '.join(map(repr, missing)) or 'at all of columns=[]'}: it has "
            f"{', '.join(map(repr, frame.columns))}"
        )
    if twice := next((name for name in columns if columns.count(name) > 1), None):
        raise InvalidArgumentError(f"columns={columns!r} has {twice!r} twice")
    _check_names(frame, columns)
    quoted = [name.replace("`", "``") for name in columns]
    return frame.select(*[frame[f"`{name}`"] for name in quoted])


def _check_names(frame: DataFrame, wanted: Sequence[str]) -> None:
    """Raises :class:`rueda.InvalidArgumentError` if one of these names matches several columns."""
    exact = str(frame.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"
    names = frame.columns if exact else [name.lower() for name in frame.columns]
    for name in wanted:
        if names.count(name if exact else name.lower()) > 1:
            raise InvalidArgumentError(
                f"the DataFrame has the column {name!r} twice, so it is unclear which one is meant: rename its "
                f"columns with df.toDF(); it has {', '.join(map(repr, frame.columns))}"
            )
