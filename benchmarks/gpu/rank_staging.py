"""Two ranks on one GPU: an allreduce through the host's memory beside what it is made of.

All rates are bytes of the tensor by seconds, of the slower rank, while both ranks do the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import rueda
import rueda.torch as rt
import torch
from rank_timing import report, synchronize

SIZES = [16 << 20, 64 << 20, 256 << 20]
REHEARSAL_SIZES = [1 << 20]
ROUNDS = 9
WARM_UP = 2


def seconds_of_all(run: Callable[[], None], device: torch.device) -> float:
    """Median over rounds of the time until the slower rank has done it and its GPU too."""
    seconds = []
    for number in range(ROUNDS + WARM_UP):
        synchronize(device)
        rueda.barrier()
        began = time.perf_counter()
        run()
        synchronize(device)
        taken = time.perf_counter() - began
        slower = max(rueda.allgather_object(taken))
        if number >= WARM_UP:
            seconds.append(slower)
    return statistics.median(seconds)


def copies_of(tensor: torch.Tensor) -> Callable[[], None]:
    """Both ways at once through pinned memory, as staging does; within the host in a rehearsal."""
    if not tensor.is_cuda:
        apart = torch.empty_like(tensor)
        return lambda: apart.copy_(tensor)
    there, back = (torch.empty(tensor.shape, pin_memory=True) for _ in range(2))
    target = torch.empty_like(tensor)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def run() -> None:
        with torch.cuda.stream(streams[0]):
            there.copy_(tensor, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            target.copy_(back, non_blocking=True)

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    device = torch.device(parser.parse_args().device)
    rueda.init()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    for size in SIZES if device.type == "cuda" else REHEARSAL_SIZES:
        given = torch.ones(size // 4, device=device)
        on_host = torch.ones(size // 4)

        def staged(tensor: torch.Tensor = given) -> None:
            rt.allreduce_(tensor, name="staged", op=rt.Average)

        def ring(tensor: torch.Tensor = on_host) -> None:
            rt.allreduce_(tensor, name="ring", op=rt.Average)

        before = rueda.metrics()["bytes_staged"]
        taken = seconds_of_all(staged, device)
        if given.is_cuda and rueda.metrics()["bytes_staged"] == before:
            raise RuntimeError("nothing went through the host's memory")
        copied = seconds_of_all(copies_of(given), device)
        reduced = seconds_of_all(ring, device)
        if rueda.rank() == 0:
            report(section="staging", bytes=size, staged=taken, copies=copied, ring=reduced)
    rueda.shutdown()


if __name__ == "__main__":
    main()
