"""A rank's training data: the batches of its partition, once per epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rueda import exchanges, lifecycle
from rueda.errors import InvalidArgumentError, RuedaError
from rueda.read_ahead import ReadAhead
from rueda.spark.arrays import is_list
from rueda.spark.checkpoints import Checkpoint
from rueda.spark.spilling import Spill, local_folder
from rueda.spark.summaries import Summaries

__all__ = ["Batches", "InputStatistics"]


@dataclass(frozen=True)
class InputStatistics:
    """How much this rank has read, and how long it has waited for it.

    ``rows``: rows of the partition; ``bytes_read``: Arrow data that Spark has fed; ``bytes_spilled``: data written to
    disk for later epochs; ``epochs``: completed epochs. ``wait_seconds``: time that training has waited for batches
    except the first; ``first_wait_seconds``: the wait for the first, in which Spark computes the preceding stages.
    """

    rows: int
    bytes_read: int
    bytes_spilled: int
    epochs: int
    wait_seconds: float
    first_wait_seconds: float


class Batches:
    """The Arrow batches (``pyarrow.RecordBatch``) of this rank's partition; each ``for`` loop is one epoch.

    In the first epoch Spark feeds them, and they are also spilled to the local disk; later epochs read them from there.
    A thread reads ahead in both cases. At the end of an epoch the rank joins, so ranks may have different numbers of
    batches, even none.

    ``checkpoint``: the one of ``fit(checkpoint=)``, see :class:`rueda.spark.Checkpoint`. ``summaries``: those of
    ``fit(tensorboard=)``, see :class:`rueda.spark.Summaries`.
    """

    def __init__(
        self,
        source: Iterable[pa.RecordBatch],
        partition: int,
        checkpoint: Checkpoint,
        summaries: Summaries,
        *,
        batch_size: int | None,
        prefetch: int,
        nulls: bool,
        spill: bool,
        join: bool,
    ) -> None:
        self.checkpoint = checkpoint
        self.summaries = summaries
        self.last_rank = lifecycle.rank()
        self._partition = partition
        self._batch_size = batch_size
        self._depth = prefetch
        self._nulls = nulls
        self._joins = join
        self._spill = Spill(local_folder(partition)) if spill else None
        self._rows = self._bytes = self._epochs = 0
        self._uneven = False
        self._source = source
        self._readers: list[ReadAhead[pa.RecordBatch]] = []  # one per epoch

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        source = self._begin()
        number = len(self._readers)
        count = 0
        for batch in _of_size(source, self._batch_size):
            count += 1
            yield batch
            if number != len(self._readers):
                raise RuedaError("this epoch ended when another began: iterate over one at a time")
        self._epochs += 1
        if self._joins:
            self.meet(count)

    def meet(self, count: int) -> None:
        """Joins at the end of an epoch of ``count`` batches; collective. Call it if ``join=False`` disables this."""
        if lifecycle.size() > 1:
            exchanges.join()
            counts = exchanges.allgather(np.array([count]), "rueda.spark.batches")
            self.last_rank = int(np.argmax(counts))
            self._uneven = bool(counts.min() != counts.max())

    def equalize(self, model: Any, optimizer: Any = None) -> None:
        """After an epoch with uneven numbers of batches, copies the state of the rank with the most to all.

        A rank that has joined adds nothing to the others' gradients and takes no steps. ``model`` and ``optimizer`` are
        torch's. Collective; does nothing if all ranks had equally many.
        """
        if not self._uneven:
            return
        import rueda.torch

        rueda.torch.broadcast_parameters(model.state_dict(), self.last_rank)
        if optimizer is not None:
            rueda.torch.broadcast_optimizer_state(optimizer, self.last_rank)

    @property
    def statistics(self) -> InputStatistics:
        """The statistics so far."""
        first = (self._readers[0].first_wait or 0.0) if self._readers else 0.0
        waited = sum(reader.waited for reader in self._readers)
        spilled = self._spill.bytes_written if self._spill else 0
        return InputStatistics(
            self._rows, self._bytes, spilled, self._epochs, waited - first, first
        )

    def close(self) -> None:
        """Reads Spark's input to its end, without which the worker cannot serve the next task, and stops reading."""
        if self._readers:
            self._readers[0].drain()
            self._readers[-1].stop()
        if self._spill is not None:
            self._spill.close()

    def _begin(self) -> ReadAhead[pa.RecordBatch]:
        """Starts the next epoch's reader: of Spark's input in the first epoch, later of the spilled batches."""
        source: Iterable[pa.RecordBatch]
        if not self._readers:
            source = self._fed()
        elif self._spill is None:
            raise RuedaError(
                "with spill=False the batches can be iterated once: leave it out for several epochs"
            )
        else:
            self._readers[-1].stop() if len(self._readers) > 1 else self._readers[0].drain()
            for _ in self._readers[0]:  # raises an error of the first epoch's reader
                pass
            source = self._spill.read()
        self._readers.append(ReadAhead(source, self._depth, "rueda-spark-input"))
        return self._readers[-1]

    def _fed(self) -> Iterator[pa.RecordBatch]:
        """Checks, spills and yields the batches from Spark; runs in the read-ahead thread."""
        for batch in self._source:
            if batch.num_rows == 0:
                continue
            if not self._nulls:
                self._refuse_nulls(batch)
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            if self._spill is not None:
                self._spill.write(batch)
            yield batch
        if self._spill is not None:
            self._spill.finish()

    def _refuse_nulls(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count:
                raise InvalidArgumentError(
                    f"column '{name}' has nulls in partition {self._partition}, {column.null_count} of "
                    f"{batch.num_rows} rows: leave them out with df.dropna(subset=['{name}']), or pass nulls=True"
                )
            if within := _nulls_within(column):
                quoted = "`" + name.replace("`", "``") + "`"
                rest = f"not {_with_nulls(quoted, column.type)}"
                raise InvalidArgumentError(
                    f"lists of column '{name}' have nulls in partition {self._partition}, {within} of them in "
                    f'{batch.num_rows} rows: leave these rows out with df.where("{rest}"), or pass nulls=True'
                )


def _with_nulls(value: str, kind: pa.DataType, depth: int = 1) -> str:
    """A Spark SQL condition: whether a list has nulls, at any depth."""
    item = "x" * depth
    inner = (
        f" or {_with_nulls(item, kind.value_type, depth + 1)}" if is_list(kind.value_type) else ""
    )
    return f"exists({value}, {item} -> {item} is null{inner})"


def _nulls_within(column: pa.Array) -> int:
    """The number of nulls inside lists at any depth; not inside structs, as Spark's vectors have some by design."""
    found = 0
    while is_list(column.type):
        column = column.flatten()
        found += column.null_count
    return found


def _of_size(batches: Iterator[pa.RecordBatch], size: int | None) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of ``size``; the last may be smaller."""
    if size is None:
        yield from batches
        return
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while count + batch.num_rows - start >= size:
            held.append(batch.slice(start, size - count))
            start += size - count
            yield _as_one(held)
            held, count = [], 0
        if start < batch.num_rows:
            held.append(batch.slice(start))
            count += batch.num_rows - start
    if held:
        yield _as_one(held)


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
