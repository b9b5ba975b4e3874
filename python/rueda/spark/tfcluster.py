"""TensorFlowOnSpark's ``TFCluster``: ``run()``, ``train()`` and ``shutdown()``."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame

from rueda import lifecycle
from rueda.errors import InvalidArgumentError, UnsupportedError
from rueda.spark.batches import Batches
from rueda.spark.fitting import fit
from rueda.spark.rdds import as_frame
from rueda.spark.running import run as run_ranks
from rueda.spark.tfnode import DataFeed

__all__ = ["InputMode", "TFCluster", "TFNodeContext", "run"]


class InputMode(enum.IntEnum):
    """Whether the function reads its data by itself or Spark feeds it."""

    TENSORFLOW = 0
    SPARK = 1


@dataclass(frozen=True)
class Feeding:
    """The input of :class:`rueda.spark.tfnode.DataFeed`. ``feeds``: the feeds that the function has created."""

    batches: Batches
    epochs: int
    feeds: list[DataFeed] = field(default_factory=list)


@dataclass(frozen=True)
class TFNodeContext:
    """The ``ctx`` of ``map_fun(args, ctx)``, which describes the rank. It is already in a Rueda world."""

    executor_id: int
    num_workers: int
    job_name: str
    task_index: int
    mgr: Feeding | None

    def get_data_feed(self, train_mode: bool = True, input_mapping: Any = None) -> DataFeed:
        """A feed of this rank's rows."""
        return DataFeed(self.mgr, train_mode, input_mapping=input_mapping)


class TFCluster:
    """The object that :func:`run` returns. ``result``: rank 0's return value of ``map_fun``."""

    def __init__(self, map_fun: Any, tf_args: Any, size: int, master: str | None) -> None:
        self._given = (map_fun, tf_args, master)
        self._size = size
        self.result: Any = None

    def train(self, data: RDD[Any] | DataFrame, num_epochs: int = 1) -> None:
        """Runs ``map_fun`` on all ranks, fed with ``num_epochs`` passes over ``data``; returns when it has ended."""
        if isinstance(num_epochs, bool) or not isinstance(num_epochs, int) or num_epochs < 1:
            raise InvalidArgumentError(f"num_epochs={num_epochs!r}: pass 1 or more")
        self.result = fit(
            as_frame(data), _fed, self._size, args=(*self._given, num_epochs), join=False
        )

    def inference(self, data: RDD[Any] | DataFrame) -> RDD[Any]:
        """Raises :class:`rueda.UnsupportedError`: inference needs no world."""
        raise UnsupportedError(
            "inference() is not available: use df.mapInArrow(rueda.spark.predictor(model, state), schema)"
        )

    def shutdown(self, grace_secs: float = 0) -> None:
        """Does nothing, as nothing is left running."""


def run(
    sc: SparkContext,
    map_fun: Callable[[Any, TFNodeContext], Any],
    tf_args: Any,
    num_executors: int,
    num_ps: int = 0,
    tensorboard: bool = False,
    input_mode: InputMode = InputMode.TENSORFLOW,
    log_dir: str | None = None,
    driver_ps_nodes: bool = False,
    master_node: str | None = None,
) -> TFCluster:
    """Runs ``map_fun(tf_args, ctx)`` on ``num_executors`` ranks: now, or with ``InputMode.SPARK`` in ``train()``.

    Raises :class:`rueda.UnsupportedError` for parameter servers and for TensorBoard, which the user starts on the
    folder that rank 0 writes, and the errors of :func:`rueda.spark.run`.
    """
    for name, value in (
        ("num_ps", num_ps),
        ("driver_ps_nodes", driver_ps_nodes),
        ("tensorboard", tensorboard),
    ):
        if value:
            raise UnsupportedError(
                f"{name}={value!r} is not available: ranks average among themselves, and TensorBoard is started by hand"
            )
    cluster = TFCluster(map_fun, tf_args, num_executors, master_node)
    if input_mode == InputMode.TENSORFLOW:
        cluster.result = run_ranks(
            _called, (map_fun, tf_args, master_node), num_proc=num_executors
        )[0]
    return cluster


def _called(map_fun: Any, tf_args: Any, master: str | None) -> Any:
    result = map_fun(tf_args, _context(master, None))
    return result if lifecycle.rank() == 0 else None


def _fed(batches: Batches, map_fun: Any, tf_args: Any, master: str | None, epochs: int) -> Any:
    feeding = Feeding(batches, epochs)
    result = map_fun(tf_args, _context(master, feeding))
    for feed in feeding.feeds:
        feed.terminate()
    return result


def _context(master: str | None, feeding: Feeding | None) -> TFNodeContext:
    rank = lifecycle.rank()
    if master is None:
        return TFNodeContext(rank, lifecycle.size(), "worker", rank, feeding)
    name, index = (master, 0) if rank == 0 else ("worker", rank - 1)
    return TFNodeContext(rank, lifecycle.size(), name, index, feeding)
