"""Converts RDDs, which older libraries' interfaces take, to DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession

from rueda.errors import InvalidArgumentError

__all__ = ["as_frame"]

_LOOKED_AT = 100  # tuples that determine column types: all would take another pass over the data


class _Column(NamedTuple):
    """A typed column. ``depth``: 0 for numbers, 1 for one-dimensional arrays, and so on."""

    name: str
    depth: int
    is_float: bool

    def declared(self) -> str:
        number = "double" if self.is_float else "bigint"
        return f"{self.name} {'array<' * self.depth}{number}{'>' * self.depth}"


def as_frame(data: RDD[Any] | DataFrame, names: Sequence[str] | None = None) -> DataFrame:
    """Returns a DataFrame unchanged; converts an RDD of tuples, with column types from the first 100 tuples.

    Values are numbers or arrays of them. ``names``: the column names, by default ``_1``, ``_2`` and so on. Raises
    :class:`rueda.InvalidArgumentError` for anything else; for later tuples, the error comes from Spark's job.
    """
    if isinstance(data, DataFrame):
        return data
    if not isinstance(data, RDD):
        raise InvalidArgumentError(
            f"the data are a DataFrame or an RDD of tuples, not a {type(data).__name__}"
        )
    session = SparkSession.builder.getOrCreate()
    rows = data.take(_LOOKED_AT)
    first = next(iter(rows), None)
    if not isinstance(first, tuple | list):
        raise InvalidArgumentError(
            f"each element of the RDD must be a tuple of numbers or arrays; the first is {first!r}"
        )
    if names is None:
        names = [f"_{number}" for number in range(1, len(first) + 1)]
    if len(names) != len(first):
        raise InvalidArgumentError(
            f"each element of the RDD must have {len(names)} values, {', '.join(names)}; the first has {len(first)}"
        )
    columns = [_Column(name, _numbers(x).ndim, False) for name, x in zip(names, first, strict=True)]
    # The first values, such as zeros, are often integers although later ones are floats.
    for row in rows:
        _check_length(columns, row)
        columns = [
            column._replace(is_float=column.is_float or _numbers(value).dtype.kind == "f")
            for column, value in zip(columns, row, strict=True)
        ]
    for row in rows:
        _row(columns, row)
    schema = ", ".join(column.declared() for column in columns)
    return session.createDataFrame(data.map(partial(_row, columns)), schema)


def _check_length(columns: Sequence[_Column], row: Any) -> None:
    if not isinstance(row, tuple | list) or len(row) != len(columns):
        raise InvalidArgumentError(
            f"each element of the RDD must be a tuple of {len(columns)} numbers or arrays, as the first; one is {row!r}"
        )


def _numbers(value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"the RDD's values are numbers or arrays of them, not {value!r}")
    return array


def _row(columns: Sequence[_Column], row: Any) -> tuple[Any, ...]:
    """The row as Python numbers of the columns' types; Spark takes no others."""
    _check_length(columns, row)
    return tuple(_value(column, value) for column, value in zip(columns, row, strict=True))


def _value(column: _Column, value: Any) -> Any:
    array = _numbers(value)
    if array.ndim != column.depth:
        raise InvalidArgumentError(
            f"column {column.name} of the RDD begins with {_of_depth(column.depth)}, and one is {value!r}"
        )
    if column.is_float:
        return array.astype(float).tolist()
    if array.dtype.kind == "f":
        raise InvalidArgumentError(
            f"column {column.name} of the RDD begins with {_LOOKED_AT} tuples of whole numbers, and one is {value!r}: "
            "make all of them floats, by rdd.map()"
        )
    whole = array.astype(int)
    if array.dtype.kind == "u" and (whole < 0).any():
        raise InvalidArgumentError(
            f"column {column.name} of the RDD has {value!r}, and Spark's whole numbers end below 2**63"
        )
    return whole.tolist()


def _of_depth(depth: int) -> str:
    return f"arrays of {depth} dimensions" if depth else "numbers"
