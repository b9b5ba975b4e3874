"""Exceeding a control group's memory limit is an error, and no process is killed."""

from __future__ import annotations

import pytest
from launching import check
from memory_groups import memory_group

MEBIBYTE = 1 << 20

# Each rank's part fits alone, but not both. Memory stays allocated until all have tried.
PROGRAM = """
import os, sys
import numpy as np
import rueda

with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
rueda.init()
try:
    array = rueda.empty(int(sys.argv[2]), np.uint8)
    array[:] = 1
    print("has its memory")
except MemoryError as error:
    print("refused:", error)
rueda.barrier()
print("sum", rueda.allreduce(np.ones(3), op=rueda.Sum, name="after").tolist())
rueda.shutdown()
"""


def outputs_of(limit: int, wanted: int, ranks: int = 2) -> list[str]:
    try:
        with memory_group(limit) as group:
            ended = check(PROGRAM, ranks, [str(group), str(wanted)], limit=90)
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    total = f"sum {[float(ranks)] * 3}"
    assert all(total in rank.output for rank in ended), ended
    return [rank.output for rank in ended]


def test_what_is_beyond_the_limit_is_an_error_and_the_world_goes_on() -> None:
    outputs = outputs_of(400 * MEBIBYTE, 300 * MEBIBYTE)
    assert any("refused: no memory for 300 MiB" in output for output in outputs), outputs
    assert all("has its memory" in output or "refused" in output for output in outputs), outputs


def test_what_is_within_the_limit_is_there() -> None:
    outputs = outputs_of(600 * MEBIBYTE, 100 * MEBIBYTE)
    assert all("has its memory" in output for output in outputs), outputs


def test_many_ranks_that_allocate_at_once_stay_within_the_limit() -> None:
    """Each allocation would fit alone, and all ranks check the limit at the same time."""
    outputs = outputs_of(700 * MEBIBYTE, 150 * MEBIBYTE, ranks=8)
    assert any("has its memory" in output for output in outputs), outputs
    assert any("refused" in output for output in outputs), outputs
