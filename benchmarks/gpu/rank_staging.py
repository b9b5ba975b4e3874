"""Two ranks on one GPU: an allreduce through the host's memory beside what it is made of.

All rates are bytes of the tensor by seconds, of the slower rank, while both ranks do the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import rueda
import rueda.torch as rt
import torch
from rank_timing import report

SIZES = [16 << 20, 64 << 20, 256 << 20]
ROUNDS = 9
WARM_UP = 2


def seconds_of_all(run: Callable[[], None]) -> float:
    """Median over rounds of the time until the slower rank has done it and its GPU too."""
    seconds = []
    for number in range(ROUNDS + WARM_UP):
        torch.cuda.synchronize()
        rueda.barrier()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        taken = time.perf_counter() - began
        slower = max(rueda.allgather_object(taken))
        if number >= WARM_UP:
            seconds.append(slower)
    return statistics.median(seconds)


def copies_of(tensor: torch.Tensor) -> Callable[[], None]:
    """Both ways at once through pinned memory, as staging does."""
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
    rueda.init()
    torch.cuda.set_device(0)
    for size in SIZES:
        on_gpu = torch.ones(size // 4, device="cuda")
        on_host = torch.ones(size // 4)

        def staged(tensor: torch.Tensor = on_gpu) -> None:
            rt.allreduce_(tensor, name="staged", op=rt.Average)

        def ring(tensor: torch.Tensor = on_host) -> None:
            rt.allreduce_(tensor, name="ring", op=rt.Average)

        before = rueda.metrics()["bytes_staged"]
        taken = seconds_of_all(staged)
        if rueda.metrics()["bytes_staged"] == before:
            raise RuntimeError("nothing went through the host's memory")
        copied, reduced = seconds_of_all(copies_of(on_gpu)), seconds_of_all(ring)
        if rueda.rank() == 0:
            report(section="staging", bytes=size, staged=taken, copies=copied, ring=reduced)
    rueda.shutdown()


if __name__ == "__main__":
    main()
