"""The program of each rank: `python -m rueda.bench.latency.worker '{...}'`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .cases import CASES, Case

_WARM_UP = 300  # calls at most, so that the library reaches its steady state
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Library:
    """One contender's functions, as its users call them."""

    rank: int
    version: str
    reduction: Callable[[Array, str], Callable[[], object]]  # in place; by array and name
    barrier: Callable[[], object]
    close: Callable[[], object]
    registered: Callable[[int, str], Array] = np.empty  # an array for repeated use; by length, type


def _rueda(_: str) -> Library:
    import rueda

    rueda.init()

    def reduction(array: Array, name: str) -> Callable[[], object]:
        return lambda: rueda.allreduce_(array, name=name, op=rueda.Sum)

    return Library(
        rueda.rank(),
        f"Rueda {rueda.__version__}",
        reduction,
        rueda.barrier,
        rueda.shutdown,
        rueda.empty,
    )


def _mpi(_: str) -> Library:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def reduction(array: Array, _: str) -> Callable[[], object]:
        return lambda: world.Allreduce(MPI.IN_PLACE, array)

    version = MPI.Get_library_version().split(",")[0]
    return Library(world.Get_rank(), version, reduction, world.Barrier, lambda: None)


def _gloo(store: str) -> Library:
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RUEDA_RANK"]), int(os.environ["RUEDA_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)

    def reduction(array: Array, _: str) -> Callable[[], object]:
        tensor = torch.from_numpy(array)
        return lambda: dist.all_reduce(tensor)

    version = f"torch {torch.__version__}"
    return Library(rank, version, reduction, dist.barrier, dist.destroy_process_group)


_MAKERS = {"rueda": _rueda, "mpi": _mpi, "gloo": _gloo}


def _nanoseconds(library: Library, case: Case) -> list[int]:
    make = library.registered if case.registered else np.empty
    arrays = [make(case.bytes // np.dtype(t).itemsize, t) for t in case.dtypes]
    for array in arrays:
        array.fill(0)
    calls = [library.reduction(array, f"{case.name}.{i}") for i, array in enumerate(arrays)]
    clock = time.perf_counter_ns
    taken = []
    library.barrier()
    for number in range(-min(case.calls, _WARM_UP), case.calls):
        turn = number % len(calls)
        if case.rewritten:
            arrays[turn].fill(0)
        if case.barrier:
            library.barrier()
        call = calls[turn]
        before = clock()
        call()
        after = clock()
        if number >= 0:
            taken.append(after - before)
    return taken


def main() -> None:
    """Measures all cases and writes the rank's result file."""
    order = json.loads(sys.argv[1])
    library = _MAKERS[order["contender"]](order["store"])
    times = {name: _nanoseconds(library, CASES[name]) for name in order["cases"]}
    result = Path(order["folder"], f"rank-{library.rank}.json")
    result.write_text(json.dumps({"version": library.version, "times": times}))
    library.barrier()
    library.close()


if __name__ == "__main__":
    main()
