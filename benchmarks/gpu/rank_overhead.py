"""One rank: operations through rueda.torch beside raw calls of NCCL, on the host and on the stream.

At one rank NCCL launches nothing for an allreduce in place; the all-to-all goes through its group and its launch.
"""

from __future__ import annotations

from collections.abc import Callable

import rueda
import rueda.torch as rt
import torch
from rank_timing import RawNccl, median_seconds, report, stream_seconds

SIZES = [4 << 10, 1 << 20, 25 << 20, 100 << 20]
TENSORS = 161


def measure(
    what: str,
    bytes_: int,
    raw: Callable[[], None],
    engine: Callable[[], None],
    repeat: int = 10,
) -> None:
    """``repeat``: calls behind a delay of 20 ms, before which the host must be done with them."""
    before = rueda.metrics()["nccl_calls"]
    synchronize = torch.cuda.synchronize
    # In turns, so that a change of the clocks meets both.
    hosts: list[tuple[float, float]] = []
    for _ in range(3):
        pair = [median_seconds(run, synchronize, repeat=50, rounds=15) for run in (raw, engine)]
        hosts.append((pair[0], pair[1]))
    hosts.sort(key=lambda pair: pair[1] - pair[0])
    host = hosts[1]
    streams = [stream_seconds(run, repeat=repeat, rounds=15) for run in (raw, engine)]
    calls = rueda.metrics()["nccl_calls"] - before
    if calls == 0:
        raise RuntimeError("the engine did not call NCCL: nothing was compared")
    report(
        section="overhead",
        what=what,
        bytes=bytes_,
        raw_host=host[0],
        engine_host=host[1],
        raw_stream=streams[0],
        engine_stream=streams[1],
        nccl_calls=calls,
    )


def measure_one(raw: RawNccl, tensor: torch.Tensor) -> None:
    def engine() -> None:
        rt.allreduce_async_(tensor, name="t", op=rt.Sum).result()

    measure("one tensor", tensor.nbytes, lambda: raw.allreduce_(tensor), engine)


def measure_alltoall(raw: RawNccl, source: torch.Tensor) -> None:
    target = torch.empty_like(source)

    def engine() -> None:
        rt.alltoall_async(source, name="rows").result()

    measure("all-to-all", source.nbytes, lambda: raw.alltoall(source, target), engine)


def main() -> None:
    rueda.init()
    torch.cuda.set_device(0)
    raw = RawNccl()
    for size in SIZES:
        measure_one(raw, torch.ones(size // 4, device="cuda"))
        measure_alltoall(raw, torch.ones(size // 4, device="cuda"))
    many = [torch.ones(i * i % 977 + 1, device="cuda") for i in range(TENSORS)]
    flat = torch.ones(sum(t.numel() for t in many), device="cuda")

    def engine() -> None:
        rt.grouped_allreduce_async_(many, name="many", op=rt.Sum).result()

    measure(f"{TENSORS} small tensors", flat.nbytes, lambda: raw.allreduce_(flat), engine, 3)
    rueda.shutdown()


if __name__ == "__main__":
    main()
