"""Names the rank that made Spark end a barrier stage; Spark's message has only a partition number and no host."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from pyspark import SparkContext

from rueda.engines.ranks import in_order_of_hosts

__all__ = ["note_rank"]

_FAILED = re.compile(r"barrier task \w+\((\d+), (\d+)\)")


def note_rank(error: Exception, context: SparkContext) -> None:
    """Adds a note with the rank and its host to a Spark error that names a barrier task (Python 3.11)."""
    told = _FAILED.search(f"{error}")
    if told is None or not hasattr(error, "add_note"):
        return
    stage, partition = map(int, told.groups())
    with suppress(Exception):  # Spark may have dropped the stage's information
        scala: Any = context._jsc.sc()
        scala.listenerBus().waitUntilEmpty()
        store = scala.statusStore()
        tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), 1 << 30)
        found = [tasks.apply(number) for number in range(tasks.size())]
        hosts = {int(task.index()): str(task.host()) for task in found}
        order = in_order_of_hosts([hosts[index] for index in range(len(hosts))])
        error.add_note(f"lost first: rank {order.index(partition)} on {hosts[partition]}")
