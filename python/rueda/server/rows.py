"""Tables of rows: embeddings larger than one rank's memory. Each step uses only a few rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rueda.adapter import Refusal
from rueda.arguments import shown
from rueda.errors import InvalidArgumentError, MismatchError
from rueda.exchanges import allgather
from rueda.handles import Handle
from rueda.process_sets import ProcessSet, global_process_set
from rueda.server.handing_over import hand_over
from rueda.server.opening import (
    Floats,
    check,
    extent,
    factor_of,
    flag,
    numbers,
    of_call,
    open_native,
    readable,
    real,
    text,
    whole,
    writeable,
)
from rueda.server.part import Part
from rueda.server.tables import OpenTable

__all__ = ["RowTable"]

Rows = npt.NDArray[np.int64]
Partition = Callable[[Rows], npt.ArrayLike]
_NO_LIMIT = 2**63
_MAX_WIDTH = 2**24


class RowTable(OpenTable):
    """float32 rows, numbered from 0, divided over the ranks of a process set.

    A row takes memory, at its owner, once it is put or added to. Until then it has its initial values, which all ranks
    know without asking: ``initial`` plus, with a ``spread``, a number from ``[-spread, spread)`` that depends on
    ``seed``, row and column.

    ``width``: elements per row, at least 1. ``rows``: the number of rows; a call with a row number outside the table
    raises :class:`rueda.InvalidArgumentError`. By default there is no limit. ``partition``: returns the ranks of the
    process set that own the given rows, as an array; it must always return the same owner for a row, on all ranks. By
    default rows are distributed by a hash. ``rule``, ``parameters``, ``replicated``, ``process_set`` and errors are as
    for :class:`Table`.

    Example::

        >>> with rueda.server.RowTable("words", width=4, spread=0.1) as table:
        ...     table.add([7, 7, 1_000_000_000], np.ones((3, 4)), ticks=True).result()
        ...     rows = table.get([7, 8], min_clock=1).result()
        >>> rows.shape
        (2, 4)
    """

    def __init__(
        self,
        name: str,
        width: int,
        *,
        rows: int | None = None,
        initial: float = 0.0,
        spread: float = 0.0,
        seed: int = 0,
        partition: Partition | None = None,
        rule: str = "sum",
        parameters: Sequence[float] = (),
        replicated: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._options: dict[str, Any] = {
            "rows": rows,
            "initial": initial,
            "spread": spread,
            "seed": seed,
            "partition": partition,
            "rule": rule,
            "parameters": parameters,
            "replicated": replicated,
        }
        self._partition = partition
        self._limit = _NO_LIMIT

        def arguments() -> tuple[Any, ...]:
            if rows is not None:
                self._limit = whole("rows", rows)
                if self._limit < 1:
                    raise Refusal(f"rows={rows}: a table has one row or more")
            if partition is not None and not callable(partition):
                raise Refusal(f"partition={shown(partition)} is not a function")
            return (
                0,
                extent("width", width, _MAX_WIDTH),
                real("initial", initial),
                real("spread", spread),
                whole("seed", seed) % 2**64,
                [],
                text("rule", rule),
                numbers("parameters", parameters, real),
                False,
                flag("replicated", replicated),
            )

        native = open_native(name, process_set, arguments)
        super().__init__(native, name, process_set)
        self.width = operator.index(width)
        self._agree(process_set)

    def _agree(self, process_set: ProcessSet) -> None:
        """Raises :class:`rueda.MismatchError` on all ranks if ``rows`` differs."""
        given = np.array([self._limit - 1], np.int64)
        found = allgather(given, f"rueda.table '{self.name}': rows", process_set)
        limits = [last + 1 for last in found.tolist()]
        other = next((rank for rank, limit in enumerate(limits) if limit != limits[0]), 0)
        if other == 0:
            return
        self.close()
        values = tuple(
            "any" if each == _NO_LIMIT else str(each) for each in (limits[other], limits[0])
        )
        told = [
            f"rows {value} on rank {process_set.ranks[rank]}"
            for value, rank in zip(values, (other, 0), strict=True)
        ]
        text = f"table '{self.name}' differs between ranks: {', '.join(told)}"
        raise MismatchError(text, tensor=self.name, field="rows", values=values)

    def get(
        self, rows: npt.ArrayLike, out: Floats | None = None, min_clock: int = 0
    ) -> Handle[Floats]:
        """The requested rows, in that order and with repetitions: an array of shape ``(rows, width)``.

        ``rows``: integers in an array of any shape, to which the result adds a last extent. Each distinct row is sent
        once. ``out`` and ``min_clock``: see :meth:`Table.get`.
        """
        asked = self._numbers("get", rows)
        distinct, places = _distinct(asked.reshape(-1))
        shape = (*asked.shape, self.width)
        target = None if out is None else writeable(self.about, "get", out)
        if target is not None and target.shape != shape:
            raise InvalidArgumentError(
                f"{self.about('get')}: out= has shape {target.shape} instead of {shape}"
            )
        owners = self._owners(distinct)
        lands = places is None and target is not None
        come = target if lands else np.empty((distinct.size, self.width), np.float32)
        assert come is not None

        def finish(_: object) -> Floats:
            if lands:
                return come
            found = come.reshape(shape) if places is None else come[places.reshape(asked.shape)]
            if target is None:
                return found
            target[...] = found
            return target

        try:
            return Handle(
                lambda: [
                    self._native.get_rows(
                        distinct.ctypes.data,
                        distinct.size,
                        _address(owners),
                        come.ctypes.data,
                        come.size,
                        min_clock,
                    )
                ],
                finish,
                (distinct, owners, come, target),
            )
        except TypeError:
            check(self.about("get"), min_clock=(whole, min_clock))
            raise

    def put(self, rows: npt.ArrayLike, values: npt.ArrayLike) -> Handle[None]:
        """Sets the rows' values; if a row occurs several times, to the last of these."""
        numbers, source = self._items("put", rows, "values", values)
        reverse, last = np.unique(numbers[::-1], return_index=True)
        kept = np.ascontiguousarray(source[::-1][last])
        owners = self._owners(reverse)
        return self._begin(
            lambda: self._native.put_rows(
                reverse.ctypes.data, reverse.size, _address(owners), kept.ctypes.data, kept.size
            ),
            (reverse, owners, kept),
        )

    def add(
        self,
        rows: npt.ArrayLike,
        delta: npt.ArrayLike,
        factor: float = 1.0,
        by_staleness: bool = False,
        ticks: bool = False,
    ) -> Handle[None]:
        """Adds to the rows, by the table's rule, ``factor`` times their deltas.

        The deltas of a row that occurs several times are summed first, in their order, so that each row is sent once.
        ``delta`` may be written again immediately. ``by_staleness`` and ``ticks``: see :meth:`Table.add`.
        """
        numbers, source = self._items("add", rows, "delta", delta)
        factor = factor_of(self.about, factor)
        distinct, places = _distinct(numbers)
        summed = source if places is None else _summed(source, places, distinct.size)
        owners = self._owners(distinct)
        try:
            return self._begin(
                lambda: self._native.add_rows(
                    distinct.ctypes.data,
                    distinct.size,
                    _address(owners),
                    summed.ctypes.data,
                    summed.size,
                    factor,
                    by_staleness,
                    ticks,
                ),
                (distinct, owners, summed),
                ticks,
            )
        except TypeError:
            check(
                self.about("add"),
                by_staleness=(flag, by_staleness),
                ticks=(flag, ticks),
            )
            raise

    def owner_of(self, row: int) -> int:
        """The rank of the process set that owns the row."""
        number = self._numbers("owner_of", of_call(self.about("owner_of"), whole, "row", row))
        owners = self._owners(number.reshape(-1))
        return self._native.owner_of(int(number)) if owners is None else int(owners[0])

    def restored(self, process_set: ProcessSet = global_process_set) -> RowTable:
        """A table in the current world with what remains of this one: see :meth:`Table.restored`."""
        table = RowTable(self.name, self.width, process_set=process_set, **self._options)
        hand_over(self, table, table.put_part, process_set)
        return table

    def put_part(self, part: Part) -> list[Handle[None]]:
        """Puts what a rank held of another table of this width and rule, including the rule's state."""
        put = [self.put(part.rows, part.values)]
        if part.state.size:
            owners = self._owners(part.rows)
            put.append(
                self._begin(
                    lambda: self._native.put_row_state(
                        part.rows.ctypes.data,
                        part.rows.size,
                        _address(owners),
                        part.state.ctypes.data,
                        part.state.size,
                    ),
                    (part, owners),
                )
            )
        return put

    def _items(
        self, call: str, rows: npt.ArrayLike, what: str, values: npt.ArrayLike
    ) -> tuple[Rows, Floats]:
        numbers = self._numbers(call, rows).reshape(-1)
        source = readable(self.about, call, what, values)
        if source.size != numbers.size * self.width:
            rows_text = "1 row" if numbers.size == 1 else f"{numbers.size} rows"
            raise InvalidArgumentError(
                f"{self.about(call)}: {what}= of shape {source.shape} for {rows_text} of {self.width} elements"
            )
        return numbers, source.reshape(numbers.size, self.width)

    def _numbers(self, call: str, rows: npt.ArrayLike) -> Rows:
        """The row numbers as the core takes them. Raises InvalidArgumentError for invalid ones."""
        try:
            given = np.asarray(rows)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise InvalidArgumentError(f"{self.about(call)}: rows={shown(rows)}: {error}") from None
        if given.size == 0:
            return np.empty(given.shape, np.int64)
        if given.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"{self.about(call)}: rows are whole numbers, not of dtype {given.dtype}"
            )
        least, most = int(given.min()), int(given.max())
        if least < 0 or most >= self._limit:
            limit = "numbers are below 2**63"
            if self._limit != _NO_LIMIT:
                limit = f"it has {self._limit} rows"
            row = least if least < 0 else most
            raise InvalidArgumentError(f"table '{self.name}': there is no row {row}: {limit}")
        return np.asarray(given, np.int64, order="C")

    def _owners(self, rows: Rows) -> npt.NDArray[np.int32] | None:
        if self._partition is None:
            return None
        given = self._partition(rows)
        try:
            found = np.ascontiguousarray(given, np.int32)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise InvalidArgumentError(
                f"table '{self.name}': partition() gave {shown(given)} instead of ranks: {error}"
            ) from None
        if found.shape != rows.shape:
            raise InvalidArgumentError(
                f"table '{self.name}': partition() gave owners of shape {found.shape} for "
                f"{rows.size} rows"
            )
        if rows.size and not (found.min() >= 0 and found.max() < self.owners):
            row = rows[(found < 0) | (found >= self.owners)][0]
            raise InvalidArgumentError(
                f"table '{self.name}': partition() leaves row {row} without one of the "
                f"{self.owners} ranks as its owner"
            )
        return found


def _address(owners: npt.NDArray[np.int32] | None) -> int:
    return 0 if owners is None else owners.ctypes.data


def _distinct(numbers: Rows) -> tuple[Rows, npt.NDArray[np.intp] | None]:
    """The distinct rows, ascending, and the index of each of ``numbers`` in them; ``None`` if they are identical."""
    if bool((numbers[1:] > numbers[:-1]).all()):
        return numbers, None
    return np.unique(numbers, return_inverse=True)


def _summed(source: Floats, places: npt.NDArray[np.intp], count: int) -> Floats:
    """For each of ``count`` rows, the sum of its values, added in their order."""
    width = source.shape[1]
    summed = np.full(count * width, -0.0, np.float32)  # adding to it keeps the sign of zero
    # NumPy has a fast loop for one dimension only.
    elements = places[:, np.newaxis] * width + np.arange(width)
    np.add.at(summed, elements.reshape(-1), source.reshape(-1))
    return summed.reshape(count, width)
