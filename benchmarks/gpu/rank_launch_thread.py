"""One rank: what a non-blocking communicator costs the host, whose launches NCCL hands to a thread that it makes.

An all-to-all of one rank goes through NCCL's group and its launch, unlike an allreduce in place, for which NCCL
launches nothing at one rank. Reported beside it: the same through Rueda.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import rueda
import rueda.torch as rt
import torch
from rank_timing import RawNccl, median_seconds, report

SIZES = [4 << 10, 1 << 20]
REPEAT = 50
ROUNDS = 15


def host_seconds(run: Callable[[], None]) -> float:
    return median_seconds(run, torch.cuda.synchronize, REPEAT, ROUNDS)


def through_rueda(source: torch.Tensor) -> None:
    rt.alltoall_async(source, name="rows").result()


def main() -> None:
    rueda.init()
    torch.cuda.set_device(0)
    communicators = {blocking: RawNccl(blocking) for blocking in (True, False)}
    for size in SIZES:
        source = torch.ones(size // 4, device="cuda")
        target = torch.empty_like(source)
        seconds = {
            blocking: host_seconds(partial(raw.alltoall, source, target))
            for blocking, raw in communicators.items()
        }
        engine = host_seconds(partial(through_rueda, source))
        if not torch.equal(source, target):
            raise RuntimeError("NCCL's all-to-all did not bring what was sent")
        report(bytes=size, blocking=seconds[True], non_blocking=seconds[False], engine=engine)
    rueda.shutdown()


if __name__ == "__main__":
    main()
