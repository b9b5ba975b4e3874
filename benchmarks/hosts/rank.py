"""One rank of benchmarks/hosts/measure.py: times allreduces by one contender, and writes what rank 0 has measured."""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
WARM_UP = 3
# Reduces an array in place; waits for all ranks; which algorithms were chosen.
Contender = tuple[Callable[[np.ndarray], None], Callable[[], None], str]


def with_rueda() -> Contender:
    """By name, as a training loop would."""
    import rueda

    rueda.init()

    def reduce(tensor: np.ndarray) -> None:
        rueda.allreduce_(tensor, op=rueda.Sum, name=f"x{tensor.size}")

    return reduce, rueda.barrier, rueda.options()["algorithm"]


def with_gloo() -> Contender:
    """Through torch.distributed."""
    import torch
    import torch.distributed as dist

    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{word}"]) for word in ("RANK", "SIZE"))
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=sys.argv[4], rank=rank, world_size=size)
    return lambda tensor: dist.all_reduce(torch.from_numpy(tensor)), dist.barrier, ""


def with_mpi() -> Contender:
    """Open MPI's own, by the library that has started the ranks."""
    mpi = ctypes.CDLL(sys.argv[4], mode=ctypes.RTLD_GLOBAL)

    def address(name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))

    world, single, total = map(
        address, ("ompi_mpi_comm_world", "ompi_mpi_float", "ompi_mpi_op_sum")
    )
    mpi.MPI_Init(None, None)
    in_place = ctypes.c_void_p(1)

    def reduce(tensor: np.ndarray) -> None:
        data = ctypes.c_void_p(tensor.ctypes.data)
        mpi.MPI_Allreduce(in_place, data, tensor.size, single, total, world)

    return reduce, lambda: mpi.MPI_Barrier(world), ""


def main() -> None:
    """Each size, after a warm-up."""
    contender, sizes, calls = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    reduce, barrier, choice = {"rueda": with_rueda, "gloo": with_gloo, "mpi": with_mpi}[contender]()
    results = {}
    for size, count in zip(sizes, calls, strict=True):
        tensor = np.zeros(size // 4, np.float32)
        for _ in range(WARM_UP):
            reduce(tensor)
        barrier()
        sent = int(SENT.read_text())
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            reduce(tensor)
            times.append(time.perf_counter() - begin)
        sent = int(SENT.read_text()) - sent
        barrier()
        results[size] = {"ms": statistics.median(times) * 1e3, "sent": sent / count}
    if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
        print("measured", json.dumps({"results": results, "choice": choice}), flush=True)


if __name__ == "__main__":
    main()
