"""RDDs, which the interfaces of former libraries take, as DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession

from rueda.errors import InvalidArgumentError

__all__ = ["as_frame"]


def as_frame(data: RDD[Any] | DataFrame, names: Sequence[str] | None = None) -> DataFrame:
    """A DataFrame as it is; of an RDD of tuples one with a column for each value, typed as those of the first tuple.

    Values are numbers or arrays of them. ``names``: of the columns, ``_1``, ``_2`` and so on by default. Raises
    :class:`rueda.InvalidArgumentError` for anything else.
    """
    if isinstance(data, DataFrame):
        return data
    if not isinstance(data, RDD):
        raise InvalidArgumentError(
            f"the data are a DataFrame or an RDD of tuples, not a {type(data).__name__}"
        )
    session = SparkSession.builder.getOrCreate()
    first = next(iter(data.take(1)), None)
    if not isinstance(first, tuple | list):
        raise InvalidArgumentError(
            f"each element of the RDD must be a tuple of numbers or arrays; the first is {first!r}"
        )
    columns = [f"_{number}" for number in range(1, len(first) + 1)] if names is None else names
    if len(columns) != len(first):
        raise InvalidArgumentError(
            f"each element of the RDD must have {len(columns)} values, {', '.join(columns)}; the first has {len(first)}"
        )
    schema = ", ".join(f"{name} {_type(value)}" for name, value in zip(columns, first, strict=True))
    return session.createDataFrame(data.map(_row), schema)


def _type(value: Any) -> str:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"the RDD's values are numbers or arrays of them, not {value!r}")
    number = "double" if array.dtype.kind == "f" else "bigint"
    return "array<" * array.ndim + number + ">" * array.ndim


def _row(values: Sequence[Any]) -> tuple[Any, ...]:
    """With numbers of Python, which is all that Spark takes."""
    return tuple(
        (array.astype(float) if array.dtype.kind == "f" else array.astype(int)).tolist()
        for array in map(np.asarray, values)
    )
