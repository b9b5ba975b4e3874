"""A rank that calls `rueda.allreduce_` and the like from Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import rueda

from ..values import OPERATIONS
from .frame import Call, PythonContender, UnsupportedCall, Work, serve


def new_array(work: Work) -> npt.NDArray[Any]:
    """A rank's input, in the requested kind of memory."""
    try:
        dtype = np.dtype(work.dtype)
    except TypeError as error:
        raise UnsupportedCall(f"NumPy has no {work.dtype}") from error
    make = rueda.empty if work.memory == "registered" else np.empty
    return make(work.input_count, dtype)


def _prepare(work: Work) -> Call:
    array = new_array(work)
    name = f"{work.collective}.{work.memory}.{work.dtype}.{work.op}.{work.input_count}"
    op = rueda.ReduceOp(OPERATIONS.index(work.op))
    calls: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: rueda.allreduce_(array, name=name, op=op),
        "broadcast": lambda: rueda.broadcast_(array, work.root, name=name),
        "allgather": lambda: rueda.allgather(array, name=name),
        "reduce_scatter": lambda: rueda.reducescatter(array, name=name, op=op),
        "alltoall": lambda: rueda.alltoall(array, name=name),
    }
    call = calls[work.collective]
    if work.in_place:
        return Call(call, array.view(np.uint8), lambda: array.view(np.uint8))
    results = [array]

    def run() -> None:
        results[0] = call()

    return Call(run, array.view(np.uint8), lambda: results[0].view(np.uint8))


class Rueda(PythonContender):
    """Named calls."""

    def __init__(self) -> None:
        rueda.init()
        self.rank, self.size = rueda.rank(), rueda.size()

    def facts(self) -> dict[str, str]:
        return {"version": f"Rueda {rueda.__version__}, numpy {np.__version__}"}

    def prepare(self, work: Work) -> Call:
        return _prepare(work)

    def close(self) -> None:
        rueda.shutdown()


if __name__ == "__main__":
    serve(Rueda(), sys.argv[1], sys.argv[2])
