"""A Spark barrier stage whose tasks are the ranks of a world."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import BarrierTaskContext, cloudpickle
from pyspark.sql import DataFrame

from rueda import lifecycle, rendezvous
from rueda.engines.exits import as_exception, without_exit
from rueda.engines.forming import Forming, plainly
from rueda.engines.network import options_at
from rueda.engines.pickling import pickled
from rueda.engines.ranks import failed_by_itself, in_order_of_hosts
from rueda.errors import InitializationError, RuedaError
from rueda.failures import Failure, report
from rueda.spark.losses import note_rank
from rueda.spark.refusals import check_cluster
from rueda.variables import set_variables

__all__ = ["Stage", "run_stage"]

_SCHEMA = "rank int, content binary"
_ARROW = pa.schema([("rank", pa.int32()), ("content", pa.binary())])
_PIECE = 64 << 20  # bytes of a result in one row: Spark limits rows to less than 2 GiB


@dataclass(frozen=True)
class Stage:
    """How the ranks run.

    ``interface``: the one on which rank 0 listens. ``variables``: environment variables while the stage runs.
    ``timeout``: how many seconds to wait for free slots.
    """

    size: int
    timeout: float
    interface: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    forming: Forming = plainly


# Called on a rank with its partition's Arrow batches. Callbacks on the stack run after the rank has left the world and,
# if it failed, told the others.
Act = Callable[[Iterator[pa.RecordBatch], ExitStack], Any]


@dataclass(frozen=True)
class _Failed:
    """A rank's failure. ``after``: seconds since all ranks had the rendezvous address."""

    failure: Failure
    after: float


def _cause_of(failed: list[_Failed]) -> Failure:
    """The failure that caused the others; if the ranks could not form a world, the first one reported.

    The other ranks waited for that one, and their errors say only so.
    """
    failures = {each.failure.rank: each.failure for each in sorted(failed, key=lambda e: e.after)}
    errors = {rank: failure.error for rank, failure in failures.items()}
    own = failed_by_itself(errors)
    return failures[min(failures) if own is None else own]


def run_stage(frame: DataFrame, act: Act, stage: Stage) -> list[Any]:
    """Calls ``act`` on each rank; returns the results by rank. ``frame`` must have one partition per rank.

    A rank's exception is raised here, with the rank and its traceback as cause. For Spark the task succeeds then, or
    it would rerun the stage, up to four times in total. If a worker is lost, Spark does so.
    """
    content = pickled(cloudpickle.dumps, "the function with its arguments", act)
    check_cluster(frame.sparkSession.sparkContext, stage.size, stage.timeout)
    ranks = frame.mapInArrow(partial(_be_a_rank, content, stage), _SCHEMA, barrier=True)
    # Without this exchange the barrier stage would be the job's last, which Spark never reruns.
    pieces: dict[int, list[bytes]] = {rank: [] for rank in range(stage.size)}
    try:
        rows = ranks.repartition(1).collect()
    except Exception as error:
        note_rank(error, frame.sparkSession.sparkContext)
        raise
    for row in rows:
        pieces[row["rank"]].append(bytes(row["content"]))
    told = {rank: _joined(content) for rank, content in pieces.items()}
    failed = [each for each in told.values() if isinstance(each, _Failed)]
    if failed:
        raise _cause_of(failed).here()
    return [told[rank] for rank in range(stage.size)]


def _be_a_rank(
    content: bytes, stage: Stage, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of a task of the stage. Yields its pickled outcome in pieces, each prefixed with its number."""
    context = BarrierTaskContext.get()
    # The executor hosts of all tasks, in the order of their partitions.
    hosts = [info.address.rpartition(":")[0] for info in context.getTaskInfos()]
    if len(hosts) != stage.size:  # Spark kept the results of some tasks of a failed attempt
        # Fails the task, so that Spark reruns all of them.
        raise RuedaError(f"Spark has made {len(hosts)} tasks of {stage.size} partitions")
    rank = in_order_of_hosts(hosts).index(context.partitionId())
    begun = time.monotonic()
    try:
        # Undoes everything at the end: Spark's workers serve other tasks later.
        with ExitStack() as at_end, set_variables(stage.variables):
            network = options_at(hosts[context.partitionId()])
            address = _meet(context, rank, stage, network)
            begun = time.monotonic()  # at about the same moment on all hosts
            # Not on the stack, which unwinds after the variables: forming restores some variables as it found them.
            with (
                stage.forming() as options,
                lifecycle.world(rank, stage.size, address, **network, **options),
            ):
                told = without_exit(cloudpickle.loads(content), batches, at_end)
        result = pickled(cloudpickle.dumps, f"what rank {rank} returns", told)
    except (
        BaseException
    ) as error:  # an exception from here would fail the task, which Spark would retry
        # With Spark's pickle, which also takes classes of the driver's main script or notebook.
        failure = report(rank, as_exception(error), cloudpickle)
        result = cloudpickle.dumps(_Failed(failure, time.monotonic() - begun))
    # If a worker is lost, the other tasks must not succeed, or Spark would rerun only the lost ones.
    context.barrier()
    for number, start in enumerate(range(0, len(result), _PIECE)):
        piece = number.to_bytes(4, "big") + result[start : start + _PIECE]
        yield pa.RecordBatch.from_arrays(
            [pa.array([rank], pa.int32()), pa.array([piece], pa.binary())], schema=_ARROW
        )


def _meet(
    context: BarrierTaskContext, rank: int, stage: Stage, network: Mapping[str, str]
) -> str | None:
    """The rendezvous address, which rank 0 opens with a new secret for each attempt; ``None`` for a single rank."""
    if stage.size == 1:
        return None
    said = ""
    if rank == 0:
        try:
            interface = stage.interface or network.get("interface", "")
            said = json.dumps({"address": rendezvous.open(stage.size, interface)})
        except RuedaError as error:  # sent to all ranks, which already wait
            said = json.dumps({"problem": f"rank 0 on {os.uname().nodename}: {error}"})
    heard = json.loads(next(filter(None, context.allGather(said))))
    if "problem" in heard:
        raise InitializationError(heard["problem"])
    return str(heard["address"])


def _joined(pieces: list[bytes]) -> Any:
    return cloudpickle.loads(b"".join(piece[4:] for piece in sorted(pieces, key=lambda p: p[:4])))
