"""A barrier stage of Spark whose tasks are the ranks of a world."""

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
_PIECE = 64 << 20  # bytes of a result in one row: Spark's rows have less than 2 GiB


@dataclass(frozen=True)
class Stage:
    """How its ranks run.

    ``interface``: at which rank 0 is reached.
    ``variables``: of the environment, while it runs. ``timeout``: for how many seconds slots may be missing.
    """

    size: int
    timeout: float
    interface: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    forming: Forming = plainly


# What a rank does with its partition's batches of Arrow. What is put on the stack happens once the rank has left the
# world, and so has told the others if it has failed.
Act = Callable[[Iterator[pa.RecordBatch], ExitStack], Any]


@dataclass(frozen=True)
class _Failed:
    """What a rank tells of its failure. ``after``: how many seconds since all had the address at which to meet."""

    failure: Failure
    after: float


def _cause_of(failed: list[_Failed]) -> Failure:
    """That of the rank that has failed by itself; of those that could not meet, the one that was the first to say so.

    The others have waited for it, and their errors tell of nothing else.
    """
    failures = {each.failure.rank: each.failure for each in sorted(failed, key=lambda e: e.after)}
    errors = {rank: failure.error for rank, failure in failures.items()}
    own = failed_by_itself(errors)
    return failures[min(failures) if own is None else own]


def run_stage(frame: DataFrame, act: Act, stage: Stage) -> list[Any]:
    """What ``act`` returns on each of the ranks, one for each partition of ``frame``, which has as many.

    Where a rank raises, raises the same here, with the rank and its traceback as cause. That is no failure for Spark,
    which would run all of it again, up to four times. Where a worker is lost, Spark does so.
    """
    content = pickled(cloudpickle.dumps, "the function with its arguments", act)
    check_cluster(frame.sparkSession.sparkContext, stage.size, stage.timeout)
    ranks = frame.mapInArrow(partial(_be_a_rank, content, stage), _SCHEMA, barrier=True)
    # Without this exchange the barrier stage would be the job's last, which Spark never runs again.
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
    """What a task of the stage does. Yields its outcome in pieces, in their order behind a number."""
    context = BarrierTaskContext.get()
    # The executors' hosts, of all tasks in the order of their partitions.
    hosts = [info.address.rpartition(":")[0] for info in context.getTaskInfos()]
    if len(hosts) != stage.size:  # where it keeps what some tasks of a failed attempt have returned
        # For Spark, which then begins anew with all of them.
        raise RuedaError(f"Spark has made {len(hosts)} tasks of {stage.size} partitions")
    rank = in_order_of_hosts(hosts).index(context.partitionId())
    begun = time.monotonic()
    try:
        # Workers of Spark serve other tasks later.
        with ExitStack() as at_end, set_variables(stage.variables):
            network = options_at(hosts[context.partitionId()])
            address = _meet(context, rank, stage, network)
            begun = time.monotonic()  # at about the same moment on all hosts
            # Not on the stack, which ends after the variables: it puts back some of those that it has found.
            with (
                stage.forming() as options,
                lifecycle.world(rank, stage.size, address, **network, **options),
            ):
                told = without_exit(cloudpickle.loads(content), batches, at_end)
        result = pickled(cloudpickle.dumps, f"what rank {rank} returns", told)
    except (
        BaseException
    ) as error:  # what is raised here ends the task for Spark, which tries it again
        # As Spark's pickle takes them: also those of classes of the driver's main script or notebook.
        failure = report(rank, as_exception(error), cloudpickle)
        result = cloudpickle.dumps(_Failed(failure, time.monotonic() - begun))
    # Where a worker is lost, the tasks of the others must not succeed for Spark, which would run only the rest again.
    context.barrier()
    for number, start in enumerate(range(0, len(result), _PIECE)):
        piece = number.to_bytes(4, "big") + result[start : start + _PIECE]
        yield pa.RecordBatch.from_arrays(
            [pa.array([rank], pa.int32()), pa.array([piece], pa.binary())], schema=_ARROW
        )


def _meet(
    context: BarrierTaskContext, rank: int, stage: Stage, network: Mapping[str, str]
) -> str | None:
    """The address of a world for this attempt alone: rank 0 opens it, and its secret is new with each."""
    if stage.size == 1:
        return None
    said = ""
    if rank == 0:
        try:
            interface = stage.interface or network.get("interface", "")
            said = json.dumps({"address": rendezvous.open(stage.size, interface)})
        except RuedaError as error:  # told to all, as others wait already
            said = json.dumps({"problem": f"rank 0 on {os.uname().nodename}: {error}"})
    heard = json.loads(next(filter(None, context.allGather(said))))
    if "problem" in heard:
        raise InitializationError(heard["problem"])
    return str(heard["address"])


def _joined(pieces: list[bytes]) -> Any:
    return cloudpickle.loads(b"".join(piece[4:] for piece in sorted(pieces, key=lambda p: p[:4])))
