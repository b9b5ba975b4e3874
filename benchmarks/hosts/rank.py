"""One rank of benchmarks/hosts/measure.py: times calls by one contender, and writes what rank 0 has measured.

Once a size is timed, what its sums are off by is measured with other data; what is not right ends the start.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import sys
import time
import zlib
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


def with_pccl(connections: int = 1, operations: int = 1, quantization: str = "") -> Contender:
    """Peers with that many connections to the next one, and that many operations at once for each tensor."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pccl"))
    import peer

    world = peer.join(sys.argv[4], place()[1], connections)
    how = peer.to_uint8(quantization) if quantization else peer.NEVER
    nothing = peer.operations(np.zeros(1, np.float32), 1)
    known: dict[tuple[int, int], Any] = {}

    def reduce(tensor: np.ndarray) -> None:
        key = tensor.ctypes.data, tensor.size
        if key not in known:
            known[key] = peer.operations(tensor, operations, how)
        peer.reduce(world, known[key])

    return reduce, lambda: peer.reduce(world, nothing)


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
    "pccl": with_pccl,
    "pccl-pool16": lambda: with_pccl(16, 4),
    "pccl-pool16-ops16": lambda: with_pccl(16, 16),
    "pccl-uint8": lambda: with_pccl(quantization="MIN_MAX"),
    "pccl-uint8-zero-point": lambda: with_pccl(quantization="ZERO_POINT_SCALE"),
    "rueda-alltoall": alltoall_with_rueda,
    "gloo-alltoall": alltoall_with_gloo,
    "mpi-alltoall": lambda: with_mpi("alltoall"),
}


# Those that sum up in place, with the greatest error that is right for them, by the largest element of all.
EXACT = 1e-6
SUMS = {
    **dict.fromkeys(("rueda", "gloo", "mpi", "pccl", "pccl-pool16", "pccl-pool16-ops16"), EXACT),
    "rueda-fp16": 1e-2,
    "rueda-int8": 0.1,
    "pccl-uint8": 0.1,
    "pccl-uint8-zero-point": 1.0,  # cuts off what is far from the mean
}


def say(line: str) -> None:
    """Writes a line in one piece."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def samples(data: str, rank: int, count: int) -> list[np.ndarray]:
    """What a rank contributes: noise with the tails that `data` names, or the tensors of its file in that folder."""
    if data not in ("t3", "normal"):
        with np.load(Path(data) / f"rank{rank}.npz") as file:
            return [file[name].ravel() for name in sorted(file)]
    noise = np.random.default_rng(rank)
    if data == "normal":
        return [noise.standard_normal(count, np.float32)]
    return [noise.standard_t(3, count).astype(np.float32)]


def error_of(reduce: Callable[[np.ndarray], None], data: str, count: int) -> tuple[float, int]:
    """The mean squared error of sums by their mean square, and a checksum of their bits."""
    rank, ranks = place()
    bound = SUMS[sys.argv[1]]
    error = square = 0.0
    checksum = 0
    exact = [part.astype(np.float64) for part in samples(data, 0, count)]
    largest = [float(np.abs(part).max()) for part in exact]
    for other in range(1, ranks):
        for number, part in enumerate(samples(data, other, count)):
            exact[number] += part
            largest[number] = max(largest[number], float(np.abs(part).max()))
    for total, part, most in zip(exact, samples(data, rank, count), largest, strict=True):
        reduce(part)
        checksum = zlib.crc32(part, checksum)
        square += float(np.sum(total**2))
        off = np.abs(part - total)
        error += float(np.sum(off**2))
        if not off.max() <= bound * max(most, float(np.abs(total).max())):
            raise SystemExit(f"{sys.argv[1]} computes wrongly: off by {off.max():g} of {most:g}")
    return error / square, checksum


def main() -> None:
    """Each size, after a warm-up."""
    name, sizes, calls = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    reduce, barrier = CONTENDERS[name]()
    results = {}
    for size, count in zip(sizes, calls, strict=True):
        tensor = np.zeros(size // 4, np.float32)
        is_lossy = SUMS.get(name, 0.0) > EXACT
        if is_lossy:  # needs something to encode, of which sums in place would soon be too large
            fresh = np.random.default_rng(place()[0]).standard_normal(size // 4, np.float32)
        for _ in range(WARM_UP):
            reduce(tensor)
        barrier()
        sent, used = int(SENT.read_text()), 0.0
        times = []
        for _ in range(count):
            if is_lossy:
                tensor[:] = fresh
            before, begin = processor_seconds(), time.perf_counter()
            reduce(tensor)
            times.append(time.perf_counter() - begin)
            used += processor_seconds() - before
        sent = int(SENT.read_text()) - sent
        barrier()
        results[size] = {
            "ms": statistics.median(times) * 1e3,
            "sent": sent / count,
            "cpu": used / count,
        }
        if name in SUMS:
            error, checksum = error_of(reduce, sys.argv[5], size // 4)
            results[size]["error"] = error
            say(f"bits {size} {checksum}")
            barrier()
    if place()[0] == 0:
        say(f"measured {json.dumps({'results': results})}")


if __name__ == "__main__":
    main()
