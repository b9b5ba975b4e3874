"""TensorFlowOnSpark's ``TFNode.DataFeed``: the rows of this rank's partition, a batch at a time."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rueda.spark.arrays import arrays
from rueda.spark.batches import Batches

__all__ = ["DataFeed"]


class DataFeed:
    """The rows of all epochs in one sequence. In :meth:`terminate` the rank joins, so that others may have more rows.

    It does not join when the rows end: a reader that prefetches, as Keras does, has not trained on the last rows yet.
    After ``map_fun`` returns, remaining feeds are terminated. ``mgr``: the context's. ``input_mapping``: maps columns
    to names in the batches, which are then dictionaries of arrays; without it they are lists of rows. ``train_mode``
    has no effect. One thread may read while others terminate.
    """

    def __init__(
        self, mgr: Any, train_mode: bool = True, *, input_mapping: Mapping[str, str] | None = None
    ) -> None:
        self._batches: Batches = mgr.batches
        self._epochs: int = mgr.epochs
        self._mapping = input_mapping
        self._count = 0
        self._ended = False
        self._ending = threading.Lock()
        self._reading = threading.Lock()  # no generator may be closed while another thread runs it
        self._columns = self._read()
        self._held: dict[str, npt.NDArray[Any]] | None = next(self._columns, None)
        mgr.feeds.append(self)

    def should_stop(self) -> bool:
        """Whether there are no more rows. After the loop, call :meth:`terminate` before any collective operation."""
        return self._ended or self._held is None

    def next_batch(self, batch_size: int) -> Any:
        """The next ``batch_size`` rows: fewer at the end, then none."""
        with self._reading:
            parts = self._take(batch_size)
            self._count += 1 if parts else 0
        names = list(parts[0]) if parts else []
        columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
        if self._mapping is not None:
            return {to: columns[name] for name, to in self._mapping.items() if name in columns}
        return list(zip(*columns.values(), strict=True))

    def terminate(self) -> None:
        """After the last step: stops reading, and waits until all ranks have done the same. Collective."""
        with self._ending:  # a second thread returns when the first has joined the others
            if self._ended:
                return
            self._ended = True  # a concurrent reader takes only the batch it is waiting for
            with self._reading:
                self._held = None
                self._columns.close()
            self._batches.meet(self._count)

    def equalize(self, model: Any, optimizer: Any = None) -> None:
        """At the end: copies the state of the rank with the most batches to all; see :class:`rueda.spark.Batches`."""
        self.terminate()
        self._batches.equalize(model, optimizer)

    def _take(self, missing: int) -> list[dict[str, npt.NDArray[Any]]]:
        parts: list[dict[str, npt.NDArray[Any]]] = []
        while missing and not self._ended and self._held is not None:
            parts.append({name: column[:missing] for name, column in self._held.items()})
            rest = {name: column[missing:] for name, column in self._held.items()}
            missing -= _rows(parts[-1])
            self._held = rest if _rows(rest) else next(self._columns, None)
        return parts

    def _read(self) -> Generator[dict[str, npt.NDArray[Any]], None, None]:
        for _ in range(self._epochs):
            for batch in self._batches:
                yield arrays(batch)


def _rows(columns: dict[str, npt.NDArray[Any]]) -> int:
    return len(next(iter(columns.values())))
