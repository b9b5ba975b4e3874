"""One rank of benchmarks/hosts/measure.py: times calls by one contender, and writes what rank 0 has measured."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
WARM_UP = 3
# Reduces an array in place, or sends each rank an equal part of it; waits for all ranks.
Contender = tuple[Callable[[np.ndarray], None], Callable[[], None]]


def place() -> tuple[int, int]:
    """This rank and how many there are, by the launcher."""
    for rank, size in (
        ("RUEDA_RANK", "RUEDA_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    raise SystemExit("start it with benchmarks/hosts/measure.py")


def with_rueda(compression: str | None = None) -> Contender:
    """By name, as a training loop would."""
    import rueda

    rueda.init()

    def reduce(tensor: np.ndarray) -> None:
        rueda.allreduce_(tensor, op=rueda.Sum, name=f"x{tensor.size}", compression=compression)

    return reduce, rueda.barrier


def alltoall_with_rueda() -> Contender:
    """By name."""
    import rueda

    rueda.init()

    def exchange(tensor: np.ndarray) -> None:
        rueda.alltoall(tensor, name=f"x{tensor.size}")

    return exchange, rueda.barrier


def with_optimizer(compression: object) -> Contender:
    """Gradients of four parameters, by rueda.torch; `compression` is a codec's name or one of Compression's."""
    import rueda
    import rueda.torch as rt
    import torch

    rueda.init()
    optimizers: dict[int, tuple[list[torch.nn.Parameter], Any]] = {}

    def reduce(tensor: np.ndarray) -> None:
        if tensor.size not in optimizers:
            parameters = [
                torch.nn.Parameter(part) for part in torch.from_numpy(tensor).clone().chunk(4)
            ]
            optimizers[tensor.size] = (
                parameters,
                rt.DistributedOptimizer(
                    torch.optim.SGD(parameters, lr=0.0),
                    [(f"p{number}", each) for number, each in enumerate(parameters)],
                    compression=getattr(rt.Compression, str(compression).partition("-")[2])
                    if str(compression).startswith("wire-")
                    else compression,
                ),
            )
        parameters, optimizer = optimizers[tensor.size]
        torch.autograd.backward([each.dot(each.detach()) for each in parameters])
        optimizer.synchronize()

    return reduce, rueda.barrier


def with_horovod() -> Contender:
    """By the name and the place that Horovod has for it."""
    import rueda
    import rueda.horovod.torch as hvd
    import torch

    hvd.init()

    def reduce(tensor: np.ndarray) -> None:
        hvd.allreduce(
            torch.from_numpy(tensor), name=f"x{tensor.size}", compression=hvd.Compression.fp16
        )

    return reduce, rueda.barrier


def with_gloo() -> Contender:
    """Through torch.distributed."""
    import torch
    import torch.distributed as dist

    rank, size = place()
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method=sys.argv[4], rank=rank, world_size=size)
    return lambda tensor: dist.all_reduce(torch.from_numpy(tensor)), dist.barrier


def alltoall_with_gloo() -> Contender:
    """Through torch.distributed."""
    import torch
    import torch.distributed as dist

    _, barrier = with_gloo()

    def exchange(tensor: np.ndarray) -> None:
        sent = torch.from_numpy(tensor)
        dist.all_to_all_single(torch.empty_like(sent), sent)

    return exchange, barrier


def with_mpi(collective: str = "allreduce") -> Contender:
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

    def exchange(tensor: np.ndarray) -> None:
        received = np.empty_like(tensor)
        count = tensor.size // place()[1]
        sent, got = (ctypes.c_void_p(each.ctypes.data) for each in (tensor, received))
        mpi.MPI_Alltoall(sent, count, single, got, count, single, world)

    return (reduce if collective == "allreduce" else exchange), lambda: mpi.MPI_Barrier(world)


def processor_seconds() -> float:
    """Of all threads of this process, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "rueda": with_rueda,
    "rueda-int8": lambda: with_rueda("int8"),
    "rueda-fp16": lambda: with_rueda("fp16"),
    "rueda-torch": lambda: with_optimizer(None),
    "rueda-torch-fp16": lambda: with_optimizer("fp16"),
    "rueda-torch-wire": lambda: with_optimizer("wire-fp16"),
    "rueda-horovod": with_horovod,
    "gloo": with_gloo,
    "mpi": with_mpi,
    "rueda-alltoall": alltoall_with_rueda,
    "gloo-alltoall": alltoall_with_gloo,
    "mpi-alltoall": lambda: with_mpi("alltoall"),
}


def main() -> None:
    """Each size, after a warm-up."""
    sizes, calls = json.loads(sys.argv[2]), json.loads(sys.argv[3])
    reduce, barrier = CONTENDERS[sys.argv[1]]()
    results = {}
    for size, count in zip(sizes, calls, strict=True):
        tensor = np.zeros(size // 4, np.float32)
        for _ in range(WARM_UP):
            reduce(tensor)
        barrier()
        sent, used = int(SENT.read_text()), processor_seconds()
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            reduce(tensor)
            times.append(time.perf_counter() - begin)
        sent, used = int(SENT.read_text()) - sent, processor_seconds() - used
        barrier()
        results[size] = {
            "ms": statistics.median(times) * 1e3,
            "sent": sent / count,
            "cpu": used / count,
        }
    if place()[0] == 0:
        print("measured", json.dumps({"results": results}), flush=True)


if __name__ == "__main__":
    main()
